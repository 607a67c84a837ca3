// Products of a few rows with rows of a weight, in every form a weight has. Knows no op.
//
// Activations are float32, put in the order in which a weight's form yields its columns, and padded
// with zeros; those of NVFP4 are integers (below). A sum's order depends on the number of columns
// alone: not on the rows computed together, nor on where an output row stands.
#pragma once
#include "lanes.h"
#include "numbers.h"
#include "op.h"

namespace ISA {

constexpr int kTileRows = 4;
// Weight rows side by side: for many rows as many as registers hold sums for; for one row as few as
// keep up with memory.
#if defined(ISA_AVX2) || defined(ISA_AVX512)
constexpr int kForOne = 2, kForTwo = 4, kForMore = 3;
#else
constexpr int kForOne = 1, kForTwo = 1, kForMore = 1;
#endif

struct Weight {
  int type;
  const char* data;
  int64_t columns;
  int64_t row_bytes;
  const uint8_t* block_scales;  // of NVFP4, one per 16 columns
};

inline int64_t group_columns(int type) { return type == kNvFp4 ? 8 * kLanes : 2 * kLanes; }

inline int64_t padded_columns(int type, int64_t columns) {
  int64_t group = group_columns(type);
  return (columns + group - 1) / group * group;
}

// Where a column of the activations stands.
inline int64_t place(int type, int64_t column) {
  if (type == kBFloat16) {
    int64_t within = column % (2 * kLanes);
    return column - within + within % 2 * kLanes + within / 2;
  }
  return column;
}

inline void put_group(const uint16_t* x, float* out) {
  store(out, even(x));
  store(out + kLanes, odd(x));
}
inline void put_group(const float* x, float* out) {
  for (int i = 0; i < kLanes; i++) out[i] = x[2 * i], out[kLanes + i] = x[2 * i + 1];
}

// For NVFP4 the activations of a block, too, are integers q and a scale that is a power of two: 22
// bits and a sign below the block's largest, and not below 2^-125. A bfloat16 is not changed by that
// unless the largest is 2^14 times it, or it is below 2^-118. A block with a NaN or an infinity is
// NaN. An E2M1 code is a half of an integer c of -12 to 12, so sums of c q are exact, and take no
// float for each code. As u = c + 12 has no sign and q is cut into three digits that have one, a
// processor multiplies and adds bytes: sum(c q) = sum(u q) - 12 sum(q).
//
// A group of columns takes as many bytes as its float32 would: for each of the three places, the
// lowest first, the digits of even columns, then of odd ones; 12 sum(q) of each eight columns; their
// scale.
template <class A>
void put_digits(const A* x, int64_t columns, char* out) {
  constexpr int64_t group = 8 * kLanes, half = 4 * kLanes;
  constexpr int kBits = 21, kLeastExponent = -104;
  for (int64_t first = 0; first < columns; first += group, out += 4 * group) {
    std::memset(out, 0, 4 * group);
    for (int64_t at = 0; at < group && first + at < columns; at += 16) {
      const A* block = x + first + at;
      float numbers[16];
      uint32_t most = 0;
      for (int i = 0; i < 16; i++) {
        numbers[i] = widened(block[i]);
        const uint32_t magnitude = bits_of(numbers[i]) & 0x7fffffff;
        most = magnitude > most ? magnitude : most;
      }
      const int32_t exponent = int32_t(most >> 23) - 127;
      const int32_t used = exponent < kLeastExponent ? kLeastExponent : exponent;
      const bool is_finite = most < 0x7f800000;
      const float up = float_of(uint32_t(127 + kBits - used) << 23);
      const float scale = is_finite ? float_of(uint32_t(127 + used - kBits) << 23) : NAN;
      constexpr float magic = 12582912.f;  // 1.5 * 2^23: what is added to it is rounded to an integer
      int32_t q[16], sums[2] = {};
      for (int i = 0; i < 16; i++)
        q[i] = is_finite ? int32_t(bits_of(numbers[i] * up + magic) - bits_of(magic)) : 0;
      for (int i = 0; i < 16; i++) {
        sums[i / 8] += q[i];
        char* to = out + i % 2 * half + (at + i) / 2;
        to[0] = char(q[i]);
        to[2 * half] = char((q[i] + 128) >> 8);
        to[4 * half] = char((q[i] + 32896) >> 16);
      }
      for (int i = 0; i < 2; i++) {
        const int32_t sum = 12 * sums[i];
        std::memcpy(out + 6 * half + 4 * (at / 8 + i), &sum, 4);
        std::memcpy(out + 7 * half + 4 * (at / 8 + i), &scale, 4);
      }
    }
  }
}

template <class A>
void put_in_order(int type, const A* x, int64_t columns, float* out) {
  if (type == kNvFp4) return put_digits(x, columns, reinterpret_cast<char*>(out));
  int64_t c = 0;
  if (type == kBFloat16) {
    for (; c + 2 * kLanes <= columns; c += 2 * kLanes) put_group(x + c, out + c);
  } else {
    for (; c < columns; c++) out[c] = widened(x[c]);
  }
  int64_t padded = padded_columns(type, columns);
  for (; c < padded; c++) out[place(type, c)] = c < columns ? widened(x[c]) : 0.f;
}

struct BFloat16Columns {
  using T = uint16_t;
  static F first(const T* p) { return even(p); }
  static F second(const T* p) { return odd(p); }
};
struct Float32Columns {
  using T = float;
  static F first(const T* p) { return load(p); }
  static F second(const T* p) { return load(p + kLanes); }
};
struct E4M3Columns {
  using T = uint8_t;
  static F first(const T* p) { return e4m3(p); }
  static F second(const T* p) { return e4m3(p + kLanes); }
};

template <class C, int R, int O>
inline void add_group(const float* const* x, int64_t at, const typename C::T* w, int64_t stride,
                      F (*sums)[O]) {
  F weights[O];
#pragma GCC unroll 8
  for (int o = 0; o < O; o++) weights[o] = C::first(w + o * stride);
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
    F row = load(x[r] + at);
#pragma GCC unroll 8
    for (int o = 0; o < O; o++) sums[r][o] = fma(weights[o], row, sums[r][o]);
  }
#pragma GCC unroll 8
  for (int o = 0; o < O; o++) weights[o] = C::second(w + o * stride);
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
    F row = load(x[r] + at + kLanes);
#pragma GCC unroll 8
    for (int o = 0; o < O; o++) sums[r][o] = fma(weights[o], row, sums[r][o]);
  }
}

// R rows by O weight rows; out[r * out_stride + o].
template <class C, int R, int O>
void tile(const float* const* x, const typename C::T* w, int64_t stride, int64_t columns, float* out,
          int64_t out_stride) {
  using T = typename C::T;
  constexpr int64_t group = 2 * kLanes;
  F sums[R][O];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int o = 0; o < O; o++) sums[r][o] = zero();
  int64_t c = 0;
  if (R == 1) {
    // The weight is read once, from memory. Asked for in the order of addresses, the rows that come
    // next arrive as fast as memory gives them; in the order of use, at two thirds of that.
    constexpr int64_t line = 64 / int64_t(sizeof(T)), some = line < group ? group : line;
    static_assert(some % group == 0 && some % line == 0, "whole groups of whole lines");
    const char* next = reinterpret_cast<const char*>(w + O * stride);
    for (; c + some <= columns; c += some) {
#pragma GCC unroll 8
      for (int o = 0; o < O * int(some / line); o++, next += 64) __builtin_prefetch(next, 0, 3);
#pragma GCC unroll 8
      for (int64_t i = 0; i < some; i += group) add_group<C, R, O>(x, c + i, w + c + i, stride, sums);
    }
  }
  for (; c + group <= columns; c += group) add_group<C, R, O>(x, c, w + c, stride, sums);
  if (c < columns) {
    T rest[O * group] = {};
    for (int o = 0; o < O; o++)
      std::memcpy(rest + o * group, w + o * stride + c, (columns - c) * sizeof(T));
    add_group<C, R, O>(x, c, rest, group, sums);
  }
  if (R * O < 4) {
    for (int r = 0; r < R; r++)
      for (int o = 0; o < O; o++) out[r * out_stride + o] = sum(sums[r][o]);
    return;
  }
  F eights[(R * O + 7) / 8 * 8];
  float joined[(R * O + 7) / 8 * 8];
#pragma GCC unroll 16
  for (int i = 0; i < (R * O + 7) / 8 * 8; i++) eights[i] = i < R * O ? sums[i / O][i % O] : zero();
  for (int i = 0; i < R * O; i += 8) ISA::sums(eights + i, joined + i);
  for (int r = 0; r < R; r++)
    for (int o = 0; o < O; o++) out[r * out_stride + o] = joined[r * O + o];
}

template <class C, int R, int O>
void rows_of_weight(const float* const* x, const Weight& weight, int64_t begin, int64_t end,
                    float* out, int64_t out_stride) {
  using T = typename C::T;
  int64_t stride = weight.row_bytes / int64_t(sizeof(T)), o = begin;
  const T* data = reinterpret_cast<const T*>(weight.data);
  for (; o + O <= end; o += O)
    tile<C, R, O>(x, data + o * stride, stride, weight.columns, out + (o - begin), out_stride);
  for (; o < end; o++)
    tile<C, R, 1>(x, data + o * stride, stride, weight.columns, out + (o - begin), out_stride);
}

// E4M3 scales in units of 2^-8; a NaN code, which is read as 480 of them, is NaN.
inline void read_scales(const uint8_t* scales, int64_t count, float* out) {
  int64_t b = 0;
  int is_nan = 0;
  for (int64_t i = 0; i < count; i++) is_nan |= (scales[i] & 0x7f) == 0x7f;
  for (; b + kLanes <= count; b += kLanes) store(out + b, e4m3(scales + b));
  if (b < count) {
    uint8_t rest[kLanes] = {};
    float last[kLanes];
    std::memcpy(rest, scales + b, count - b);
    store(last, e4m3(rest));
    std::memcpy(out + b, last, (count - b) * sizeof(float));
  }
  for (int64_t i = 0; is_nan && i < count; i++)
    if ((scales[i] & 0x7f) == 0x7f) out[i] = NAN;
}

template <int R>
inline void add_blocks(const float* const* x, int64_t at, const uint8_t* packed, const float* scales,
                       F* sums) {
  const Codes codes = codes_of(packed);
  const F factors = scales_of_blocks(scales);
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
    const char* row = reinterpret_cast<const char*>(x[r] + at);
    const F scale = mul(factors, load(reinterpret_cast<const float*>(row + 28 * kLanes)));
    sums[r] = fma(eight_products(codes, row), scale, sums[r]);
  }
}

// Integer sums of eight columns, times the scales of both sides. An integer is twice what a code
// says, and a scale of the weight in units of 2^-8.
template <int R>
void packed_rows(const float* const* x, const Weight& weight, int64_t begin, int64_t end, float* out,
                 int64_t out_stride) {
  constexpr int64_t group = 8 * kLanes, most_blocks = 256, ahead = 2048;
  const int64_t columns = weight.columns, row_blocks = columns / 16;
  const uint8_t* codes = reinterpret_cast<const uint8_t*>(weight.data) + begin * weight.row_bytes;
  const uint8_t* unread = weight.block_scales + begin * row_blocks;
  int64_t num_unread = (end - begin) * row_blocks, num_read = 0;
  float read[most_blocks];
  const float* scales = read;
  for (int64_t o = begin; o < end; o++) {
    F sums[R];
    for (int r = 0; r < R; r++) sums[r] = zero();
    for (int64_t first = 0; first < columns; first += 16 * most_blocks) {
      const int64_t left = columns - first, here = left < 16 * most_blocks ? left : 16 * most_blocks;
      if (num_read == 0) {  // of as many whole rows as there is room for, or of a part of one
        num_read = num_unread < most_blocks ? num_unread : most_blocks;
        if (row_blocks <= most_blocks) num_read -= num_read % row_blocks;
        else num_read = here / 16;
        read_scales(unread, num_read, read);
        unread += num_read, num_unread -= num_read, scales = read;
      }
      num_read -= here / 16;
      int64_t c = 0;
      for (; c + group <= here; c += group, codes += group / 2, scales += group / 16) {
        if (R == 1) __builtin_prefetch(codes + ahead, 0, 3);
        add_blocks<R>(x, first + c, codes, scales, sums);
      }
      if (c < here) {
        uint8_t rest[group / 2] = {};
        float last[group / 16] = {};
        std::memcpy(rest, codes, (here - c) / 2);
        std::memcpy(last, scales, (here - c) / 16 * sizeof(float));
        add_blocks<R>(x, first + c, rest, last, sums);
        codes += (here - c) / 2, scales += (here - c) / 16;
      }
    }
    for (int r = 0; r < R; r++) out[r * out_stride + o - begin] = sum(sums[r]) * 128.f;
  }
}

// Rows [begin, end) of a bfloat16 weight in float32, written to `panel`: for many rows they are
// widened once, not with each kTileRows. The products are the same.
inline Weight widened_rows(const Weight& weight, int64_t begin, int64_t end, float* panel) {
  const int64_t columns = weight.columns, padded = padded_columns(kBFloat16, columns);
  for (int64_t o = begin; o < end; o++)
    put_in_order(kBFloat16, reinterpret_cast<const uint16_t*>(weight.data + o * weight.row_bytes),
                 columns, panel + (o - begin) * padded);
  return {kFloat32, reinterpret_cast<const char*>(panel), padded,
          padded * int64_t(sizeof(float)), nullptr};
}

template <int R, int O>
inline void some_rows(const float* const* x, const Weight& weight, int64_t begin, int64_t end, float* out,
               int64_t out_stride) {
  switch (weight.type) {
    case kFloat32: return rows_of_weight<Float32Columns, R, O>(x, weight, begin, end, out, out_stride);
    case kBFloat16: return rows_of_weight<BFloat16Columns, R, O>(x, weight, begin, end, out, out_stride);
    case kE4M3: return rows_of_weight<E4M3Columns, R, R == 1 ? kForTwo : O>(x, weight, begin, end, out, out_stride);
    case kNvFp4: return packed_rows<R>(x, weight, begin, end, out, out_stride);
  }
}

// Rows x[0], ..., x[rows - 1] (at most kTileRows) by weight rows [begin, end), without row scales.
// Never inlined: it is large, and called from few places with much work.
[[gnu::noinline]] inline void product(const float* const* x, int64_t rows, const Weight& weight, int64_t begin,
                    int64_t end, float* out, int64_t out_stride) {
  switch (rows) {
    case 1: return some_rows<1, kForOne>(x, weight, begin, end, out, out_stride);
    case 2: return some_rows<2, kForTwo>(x, weight, begin, end, out, out_stride);
    case 3: return some_rows<3, kForMore>(x, weight, begin, end, out, out_stride);
    case 4: return some_rows<4, kForMore>(x, weight, begin, end, out, out_stride);
  }
}

}  // namespace ISA
