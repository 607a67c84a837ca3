// Products of a few rows with rows of a weight, in every form a weight has. Knows no op.
//
// Activations are float32, put in the order in which a weight's form yields its columns, and padded
// with zeros. A sum's order depends on the number of columns alone: not on the rows computed
// together, nor on where an output row stands.
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
  if (type == kNvFp4) {
    int64_t within = column % (8 * kLanes), block = within / 16, element = within % 16;
    int64_t lane = block / 2 * 4 + element / 4;
    return column - within + block % 2 * 4 * kLanes + element % 4 * kLanes + lane;
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

template <class A>
void put_in_order(int type, const A* x, int64_t columns, float* out) {
  int64_t c = 0;
  if (type == kBFloat16) {
    for (; c + 2 * kLanes <= columns; c += 2 * kLanes) put_group(x + c, out + c);
  } else if (type != kNvFp4) {
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

template <int R>
inline void add_blocks(const float* const* x, int64_t at, const uint8_t* codes, const float* scales,
                       F (*sums)[2]) {
  F numbers[2][4], factors[2];
  e2m1(codes, numbers);
  block_scales(scales, factors);
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
      const float* row = x[r] + at + half * 4 * kLanes;
      F part = mul(numbers[half][0], load(row));
      part = fma(numbers[half][1], load(row + kLanes), part);
      part = fma(numbers[half][2], load(row + 2 * kLanes), part);
      part = fma(numbers[half][3], load(row + 3 * kLanes), part);
      sums[r][half] = fma(part, factors[half], sums[r][half]);
    }
}

// Code times number in blocks, the block's scale on their sum.
template <int R>
void packed_rows(const float* const* x, const Weight& weight, int64_t begin, int64_t end, float* out,
                 int64_t out_stride) {
  constexpr int64_t group = 8 * kLanes, piece = 32 * group;
  const int64_t columns = weight.columns;
  float factors[piece / 16];
  for (int64_t o = begin; o < end; o++) {
    const uint8_t* codes = reinterpret_cast<const uint8_t*>(weight.data) + o * weight.row_bytes;
    const uint8_t* scales = weight.block_scales + o * (columns / 16);
    F sums[R][2];
    for (int r = 0; r < R; r++) sums[r][0] = sums[r][1] = zero();
    for (int64_t first = 0; first < columns; first += piece) {
      const int64_t left = columns - first < piece ? columns - first : piece;
      int64_t b = 0;
      for (; b + kLanes <= left / 16; b += kLanes) store(factors + b, scales_of(scales + first / 16 + b));
      if (b < left / 16) {
        uint8_t rest[kLanes] = {};
        std::memcpy(rest, scales + first / 16 + b, left / 16 - b);
        store(factors + b, scales_of(rest));
      }
      int64_t c = 0;
      for (; c + group <= left; c += group) {
        if (R == 1) __builtin_prefetch(codes + (first + c) / 2 + weight.row_bytes, 0, 3);
        add_blocks<R>(x, first + c, codes + (first + c) / 2, factors + c / 16, sums);
      }
      if (c < left) {
        uint8_t rest[group / 2] = {};
        std::memcpy(rest, codes + (first + c) / 2, (left - c) / 2);
        for (b = left / 16; b < (c + group) / 16; b++) factors[b] = 0;
        add_blocks<R>(x, first + c, rest, factors + c / 16, sums);
      }
    }
    for (int r = 0; r < R; r++) out[r * out_stride + o - begin] = sum(add(sums[r][0], sums[r][1]));
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
