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
inline float sum(F x) {
  alignas(64) float v[16];
  store(v, x);
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; i++) v[i] += v[i + half];
  return v[0];
}

// Of 128 columns of NVFP4, see product.h.
struct Codes {
  __m512i even, odd;
};
inline Codes codes_of(const uint8_t* p) {
  const __m512i table = _mm512_broadcast_i32x4(
      _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  const __m512i nibble = _mm512_set1_epi8(15), bytes = _mm512_loadu_si512(p);
  return {_mm512_shuffle_epi8(table, _mm512_and_si512(bytes, nibble)),
          _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(bytes, 4), nibble))};
}
inline F eight_products(const Codes& codes, const char* x) {
  auto pairs = [&](int place) {
    const char* digits = x + place * 128;
    return _mm512_add_epi16(_mm512_maddubs_epi16(codes.even, _mm512_loadu_si512(digits)),
                            _mm512_maddubs_epi16(codes.odd, _mm512_loadu_si512(digits + 64)));
  };
  const __m512i one = _mm512_set1_epi16(1), next = _mm512_set1_epi16(256);
  const __m512i high = _mm512_slli_epi32(_mm512_madd_epi16(pairs(2), one), 16);
  const __m512i low = _mm512_add_epi32(_mm512_madd_epi16(pairs(1), next), _mm512_madd_epi16(pairs(0), one));
  return _mm512_cvtepi32_ps(
      _mm512_sub_epi32(_mm512_add_epi32(high, low), _mm512_loadu_si512(x + 384)));
}
// Of 8 blocks, each to its two lanes.
inline F scales_of_blocks(const float* s) {
  const __m512i index = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  return _mm512_permutexvar_ps(index, _mm512_castps256_ps512(_mm256_loadu_ps(s)));
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

// Of 64 columns of NVFP4, see product.h.
struct Codes {
  __m256i even, odd;
};
inline Codes codes_of(const uint8_t* p) {
  const __m256i table = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  const __m256i nibble = _mm256_set1_epi8(15), bytes = bits(p);
  return {_mm256_shuffle_epi8(table, _mm256_and_si256(bytes, nibble)),
          _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(bytes, 4), nibble))};
}
inline F eight_products(const Codes& codes, const char* x) {
  auto pairs = [&](int place) {
    const char* digits = x + place * 64;
    return _mm256_add_epi16(_mm256_maddubs_epi16(codes.even, bits(digits)),
                            _mm256_maddubs_epi16(codes.odd, bits(digits + 32)));
  };
  const __m256i one = _mm256_set1_epi16(1), next = _mm256_set1_epi16(256);
  const __m256i high = _mm256_slli_epi32(_mm256_madd_epi16(pairs(2), one), 16);
  const __m256i low = _mm256_add_epi32(_mm256_madd_epi16(pairs(1), next), _mm256_madd_epi16(pairs(0), one));
  return _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_add_epi32(high, low), bits(x + 192)));
}
// Of 4 blocks, each to its two lanes.
inline F scales_of_blocks(const float* s) {
  const F scales = _mm256_broadcast_ps(reinterpret_cast<const __m128*>(s));
  return _mm256_permutevar_ps(scales, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
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
inline float sum(F x) {
  for (int half = kLanes / 2; half; half /= 2)
    for (int i = 0; i < half; i++) x.v[i] += x.v[i + half];
  return x.v[0];
}
// Of 64 columns of NVFP4, see product.h.
struct Codes {
  uint8_t even[4 * kLanes], odd[4 * kLanes];
};
inline Codes codes_of(const uint8_t* p) {
  static const uint8_t table[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
  Codes codes;
  for (int i = 0; i < 4 * kLanes; i++) codes.even[i] = table[p[i] & 15], codes.odd[i] = table[p[i] >> 4];
  return codes;
}
inline F eight_products(const Codes& codes, const char* x) {
  const int8_t* digits = reinterpret_cast<const int8_t*>(x);
  F r;
  for (int lane = 0; lane < kLanes; lane++) {
    int32_t sum, whole = 0;
    std::memcpy(&sum, x + 24 * kLanes + 4 * lane, 4);
    for (int place = 2; place >= 0; place--) {
      int32_t part = 0;
      for (int i = 4 * lane; i < 4 * lane + 4; i++)
        part += codes.even[i] * digits[8 * kLanes * place + i] +
                codes.odd[i] * digits[8 * kLanes * place + 4 * kLanes + i];
      whole = whole * 256 + part;
    }
    r.v[lane] = float(whole - sum);
  }
  return r;
}
inline F scales_of_blocks(const float* s) {
  F r;
  for (int lane = 0; lane < kLanes; lane++) r.v[lane] = s[lane / 2];
  return r;
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
