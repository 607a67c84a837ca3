// A vector of float32 lanes, one definition per instruction set; each file that includes this picks
// one by ISA_* and gets it in a namespace of its own. Knows no op.
//
// Sums are defined by lanes: which columns a lane takes, in which order, and how lanes are joined
// (halves onto halves). Every set of 8 lanes has the same bits; AVX-512 has 16, and bits of its own.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(ISA_AVX512) || defined(ISA_AVX2)
#include <immintrin.h>
#endif

namespace ISA {

#if defined(ISA_AVX512)

constexpr int kLanes = 16;
using F = __m512;
inline F zero() { return _mm512_setzero_ps(); }
inline F all(float x) { return _mm512_set1_ps(x); }
inline F load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, F x) { _mm512_storeu_ps(p, x); }
inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
inline F add(F a, F b) { return _mm512_add_ps(a, b); }
inline F as_floats(__m512i bits) { return _mm512_castsi512_ps(bits); }
// Even and odd elements of 32 bfloat16.
inline F even(const uint16_t* p) { return as_floats(_mm512_slli_epi32(_mm512_loadu_si512(p), 16)); }
inline F odd(const uint16_t* p) {
  return as_floats(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(int(0xffff0000u))));
}
// 16 bfloat16 in their order.
inline F in_order(const uint16_t* p) {
  __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return as_floats(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}
// 16 E4M3 times 2^-8.
inline F e4m3(const uint8_t* p) {
  __m256i words = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  words = _mm256_srai_epi16(_mm256_slli_epi16(words, 8), 1);
  return _mm512_cvtph_ps(_mm256_and_si256(words, _mm256_set1_epi16(short(0xbf80))));
}
// 16 E4M3 scales; a NaN code, which is read as 480 above, is NaN.
inline F scales_of(const uint8_t* p) {
  const F part = e4m3(p);
  const __mmask16 is_nan = _mm512_cmp_ps_mask(_mm512_abs_ps(part), all(1.875f), _CMP_EQ_OQ);
  return _mm512_mask_blend_ps(is_nan, mul(part, all(256.f)), all(NAN));
}
inline float sum(F x) {
  alignas(64) float v[16];
  store(v, x);
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; i++) v[i] += v[i + half];
  return v[0];
}

// The codes of 128 columns (64 bytes) as numbers: 2 x 4 vectors, see nvfp4.h.
inline void e2m1(const uint8_t* codes, F (*out)[4]) {
  const __m512i high = _mm512_broadcast_i32x4(
      _mm_setr_epi8(0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, char(0x80), char(0xbf), char(0xbf),
                    char(0xbf), char(0xc0), char(0xc0), char(0xc0), char(0xc0)));
  const __m512i low = _mm512_broadcast_i32x4(
      _mm_setr_epi8(0, 0, char(0x80), char(0xc0), 0, 0x40, char(0x80), char(0xc0), 0, 0, char(0x80),
                    char(0xc0), 0, 0x40, char(0x80), char(0xc0)));
  const __m512i nibble = _mm512_set1_epi8(15), upper = _mm512_set1_epi32(int(0xffff0000u));
  __m512i bytes = _mm512_loadu_si512(codes);
  __m512i evens = _mm512_and_si512(bytes, nibble);
  __m512i odds = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), nibble);
  __m512i eh = _mm512_shuffle_epi8(high, evens), el = _mm512_shuffle_epi8(low, evens);
  __m512i oh = _mm512_shuffle_epi8(high, odds), ol = _mm512_shuffle_epi8(low, odds);
  const __m512i e[2] = {_mm512_unpacklo_epi8(el, eh), _mm512_unpackhi_epi8(el, eh)};
  const __m512i o[2] = {_mm512_unpacklo_epi8(ol, oh), _mm512_unpackhi_epi8(ol, oh)};
  for (int half = 0; half < 2; half++) {
    out[half][0] = as_floats(_mm512_slli_epi32(e[half], 16));
    out[half][1] = as_floats(_mm512_slli_epi32(o[half], 16));
    out[half][2] = as_floats(_mm512_and_si512(e[half], upper));
    out[half][3] = as_floats(_mm512_and_si512(o[half], upper));
  }
}
// Scales of 8 blocks: block 2 q + half to the four lanes of quarter q.
inline void block_scales(const float* s, F* out) {
  const __m512i index = _mm512_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6);
  F scales = _mm512_castps256_ps512(_mm256_loadu_ps(s));
  out[0] = _mm512_permutexvar_ps(index, scales);
  out[1] = _mm512_permutexvar_ps(_mm512_add_epi32(index, _mm512_set1_epi32(1)), scales);
}

#elif defined(ISA_AVX2)

constexpr int kLanes = 8;
using F = __m256;
inline F zero() { return _mm256_setzero_ps(); }
inline F all(float x) { return _mm256_set1_ps(x); }
inline F load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, F x) { _mm256_storeu_ps(p, x); }
inline F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
inline F mul(F a, F b) { return _mm256_mul_ps(a, b); }
inline F add(F a, F b) { return _mm256_add_ps(a, b); }
inline __m256i bits(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline F as_floats(__m256i x) { return _mm256_castsi256_ps(x); }
// Even and odd elements of 16 bfloat16.
inline F even(const uint16_t* p) { return as_floats(_mm256_slli_epi32(bits(p), 16)); }
inline F odd(const uint16_t* p) {
  return as_floats(_mm256_and_si256(bits(p), _mm256_set1_epi32(int(0xffff0000u))));
}
// 8 bfloat16 in their order.
inline F in_order(const uint16_t* p) {
  __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return as_floats(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
}
// 8 E4M3 times 2^-8: moved up by 7, their bits are a float16 of that value, subnormals included.
inline F e4m3(const uint8_t* p) {
  __m128i words = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  words = _mm_srai_epi16(_mm_slli_epi16(words, 8), 1);
  return _mm256_cvtph_ps(_mm_and_si128(words, _mm_set1_epi16(short(0xbf80))));
}
// 8 E4M3 scales; a NaN code, which is read as 480 above, is NaN.
inline F scales_of(const uint8_t* p) {
  const F part = e4m3(p);
  const F is_nan = _mm256_cmp_ps(_mm256_andnot_ps(all(-0.f), part), all(1.875f), _CMP_EQ_OQ);
  return _mm256_or_ps(mul(part, all(256.f)), is_nan);
}
inline float sum(F x) {
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

// The sums of eight vectors, each added as sum() adds it.
inline void sums(const F* x, float* out) {
  F four[4], two[2];
  for (int i = 0; i < 4; i++)
    four[i] = add(_mm256_permute2f128_ps(x[i], x[i + 4], 0x20), _mm256_permute2f128_ps(x[i], x[i + 4], 0x31));
  for (int i = 0; i < 2; i++) {
    const __m256d a = _mm256_castps_pd(four[2 * i]), b = _mm256_castps_pd(four[2 * i + 1]);
    two[i] = add(_mm256_castpd_ps(_mm256_unpacklo_pd(a, b)), _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)));
  }
  store(out, add(_mm256_shuffle_ps(two[0], two[1], 0x88), _mm256_shuffle_ps(two[0], two[1], 0xdd)));
}

// The codes of 64 columns (32 bytes) as numbers: 2 x 4 vectors, see nvfp4.h. Two tables give the
// upper and the lower byte of a code's bfloat16.
inline void e2m1(const uint8_t* codes, F (*out)[4]) {
  const __m256i high = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, char(0x80), char(0xbf), char(0xbf),
                    char(0xbf), char(0xc0), char(0xc0), char(0xc0), char(0xc0)));
  const __m256i low = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 0, char(0x80), char(0xc0), 0, 0x40, char(0x80), char(0xc0), 0, 0, char(0x80),
                    char(0xc0), 0, 0x40, char(0x80), char(0xc0)));
  const __m256i nibble = _mm256_set1_epi8(15), upper = _mm256_set1_epi32(int(0xffff0000u));
  __m256i bytes = bits(codes);
  __m256i evens = _mm256_and_si256(bytes, nibble);
  __m256i odds = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), nibble);
  __m256i eh = _mm256_shuffle_epi8(high, evens), el = _mm256_shuffle_epi8(low, evens);
  __m256i oh = _mm256_shuffle_epi8(high, odds), ol = _mm256_shuffle_epi8(low, odds);
  const __m256i e[2] = {_mm256_unpacklo_epi8(el, eh), _mm256_unpackhi_epi8(el, eh)};
  const __m256i o[2] = {_mm256_unpacklo_epi8(ol, oh), _mm256_unpackhi_epi8(ol, oh)};
  for (int half = 0; half < 2; half++) {
    out[half][0] = as_floats(_mm256_slli_epi32(e[half], 16));
    out[half][1] = as_floats(_mm256_slli_epi32(o[half], 16));
    out[half][2] = as_floats(_mm256_and_si256(e[half], upper));
    out[half][3] = as_floats(_mm256_and_si256(o[half], upper));
  }
}
// Scales of 4 blocks: block 2 q + half to the four lanes of half q.
inline void block_scales(const float* s, F* out) {
  F scales = _mm256_broadcast_ps(reinterpret_cast<const __m128*>(s));
  out[0] = _mm256_permutevar_ps(scales, _mm256_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2));
  out[1] = _mm256_permutevar_ps(scales, _mm256_setr_epi32(1, 1, 1, 1, 3, 3, 3, 3));
}

#else

constexpr int kLanes = 8;
struct F {
  float v[kLanes];
};
inline F zero() { return F{}; }
inline F all(float x) {
  F r;
  for (float& lane : r.v) lane = x;
  return r;
}
inline F load(const float* p) {
  F r;
  std::memcpy(r.v, p, sizeof r.v);
  return r;
}
inline void store(float* p, F x) { std::memcpy(p, x.v, sizeof x.v); }
inline F fma(F a, F b, F c) {
  for (int i = 0; i < kLanes; i++) c.v[i] = std::fmaf(a.v[i], b.v[i], c.v[i]);
  return c;
}
inline F mul(F a, F b) {
  for (int i = 0; i < kLanes; i++) a.v[i] *= b.v[i];
  return a;
}
inline F add(F a, F b) {
  for (int i = 0; i < kLanes; i++) a.v[i] += b.v[i];
  return a;
}
inline float from_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
inline F strided(const uint16_t* p, int first, int step) {
  F r;
  for (int i = 0; i < kLanes; i++) r.v[i] = from_bits(uint32_t(p[first + step * i]) << 16);
  return r;
}
inline F even(const uint16_t* p) { return strided(p, 0, 2); }
inline F odd(const uint16_t* p) { return strided(p, 1, 2); }
inline F in_order(const uint16_t* p) { return strided(p, 0, 1); }
inline F e4m3(const uint8_t* p) {
  F r;
  for (int i = 0; i < kLanes; i++) {
    int e = (p[i] >> 3) & 15, m = p[i] & 7;
    float x = e ? std::ldexp(float(8 + m), e - 18) : std::ldexp(float(m), -17);
    r.v[i] = p[i] & 0x80 ? -x : x;
  }
  return r;
}
inline F scales_of(const uint8_t* p) {
  F r = mul(e4m3(p), all(256.f));
  for (int i = 0; i < kLanes; i++)
    if ((p[i] & 0x7f) == 0x7f) r.v[i] = NAN;
  return r;
}
inline float sum(F x) {
  for (int half = kLanes / 2; half; half /= 2)
    for (int i = 0; i < half; i++) x.v[i] += x.v[i + half];
  return x.v[0];
}
inline void e2m1(const uint8_t* codes, F (*out)[4]) {
  static const float table[16] = {0,    0.5f,  1,   1.5f,  2,   3,   4,   6,
                                  -0.f, -0.5f, -1,  -1.5f, -2,  -3,  -4,  -6};
  for (int half = 0; half < 2; half++)
    for (int lane = 0; lane < kLanes; lane++)
      for (int i = 0; i < 4; i++) {
        int column = 16 * (2 * (lane / 4) + half) + 4 * (lane % 4) + i;
        out[half][i].v[lane] = table[(codes[column / 2] >> (4 * (column % 2))) & 15];
      }
}
inline void block_scales(const float* s, F* out) {
  for (int half = 0; half < 2; half++)
    for (int lane = 0; lane < kLanes; lane++) out[half].v[lane] = s[2 * (lane / 4) + half];
}

#endif

#if !defined(ISA_AVX2)
inline void sums(const F* x, float* out) {
  for (int i = 0; i < 8; i++) out[i] = sum(x[i]);
}
#endif

inline F numbers(const float* p) { return load(p); }
inline F numbers(const uint16_t* p) { return in_order(p); }

}  // namespace ISA
