// Numbers as they lie in memory, and elementwise functions of plain float32 operations, which every
// instruction set computes alike. Included after ISA is defined.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace ISA {

inline uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
inline float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
inline float widened(float x) { return x; }
inline float widened(uint16_t x) { return float_of(uint32_t(x) << 16); }

// To nearest, ties to even.
template <class A>
A rounded(float x);
template <>
inline float rounded<float>(float x) {
  return x;
}
template <>
inline uint16_t rounded<uint16_t>(float x) {
  uint32_t bits = bits_of(x);
  uint16_t near = uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  return (bits & 0x7fffffff) > 0x7f800000 ? uint16_t(0x7fc0) : near;
}

inline float half_of(uint16_t bits) {
  int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  float x;
  if (exponent == 31) x = mantissa ? NAN : INFINITY;
  else x = std::ldexp(float(exponent ? 1024 + mantissa : mantissa), (exponent ? exponent : 1) - 25);
  return bits & 0x8000 ? -x : x;
}

// Within 2 units in the last place; the polynomial is that of Cephes' expf.
inline float exponential(float x) {
  x = x < -104.f ? -104.f : x;
  x = x > 89.f ? 89.f : x;
  const float magic = 12582912.f;
  float shifted = x * 1.44269504f + magic;
  float n = shifted - magic;
  float r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  float y = 1.9875691500e-4f;
  y = y * r + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * (r * r) + r + 1.f;
  // In two factors, since 2^n itself may be no normal number.
  uint32_t whole = bits_of(shifted) - bits_of(magic);
  uint32_t half = uint32_t(int32_t(whole) >> 1);
  return y * float_of((half + 127) << 23) * float_of((whole - half + 127) << 23);
}

// A NaN is passed over.
inline float most_of_eights(const float* x, int64_t count) {
  float lanes[8];
  for (float& lane : lanes) lane = -INFINITY;
  int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    for (int lane = 0; lane < 8; lane++) lanes[lane] = x[i + lane] > lanes[lane] ? x[i + lane] : lanes[lane];
  for (; i < count; i++) lanes[0] = x[i] > lanes[0] ? x[i] : lanes[0];
  for (int half = 4; half; half /= 2)
    for (int lane = 0; lane < half; lane++)
      lanes[lane] = lanes[lane + half] > lanes[lane] ? lanes[lane + half] : lanes[lane];
  return lanes[0];
}

// In eight sums, every eighth number each, halves of them onto halves.
inline float sum_of_eights(const float* x, int64_t count) {
  float lanes[8] = {};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    for (int lane = 0; lane < 8; lane++) lanes[lane] += x[i + lane];
  for (int lane = 0; i < count; i++, lane++) lanes[lane] += x[i];
  for (int half = 4; half; half /= 2)
    for (int lane = 0; lane < half; lane++) lanes[lane] += lanes[lane + half];
  return lanes[0];
}

}  // namespace ISA
