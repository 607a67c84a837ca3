// Causal grouped-query attention, a row and a KV head at a time.
//
// A row's positions are taken in blocks of 256 from the first one it reads; each block gives its
// largest score, the sum of its exponentials and its weighted values, and blocks are joined in
// order. So a row's bits depend on its position and window alone, whoever computes which block.
#pragma once
#include <type_traits>

#include "operands.h"
#include "product.h"

namespace ISA {

constexpr int64_t kBlock = 256;
constexpr int kSomeHeads = 4;
constexpr int64_t kMostHeadSize = 1024;

struct Heads {
  const char* k;  // of this KV head at slot 0
  const char* v;
  int64_t stride;  // bytes from slot to slot
  const int64_t* slots;
  int64_t size;  // D
  float scale;
  float softcap;  // 0: unbounded
  const char* key(int64_t i) const { return k + (slots ? slots[i] : i) * stride; }
  const char* value(int64_t i) const { return v + (slots ? slots[i] : i) * stride; }
};

// What one block of positions gives for one head: [largest score, sum, D values].
template <class A, int G>
void block(const float (*q)[kMostHeadSize], const Heads& heads, int64_t begin, int64_t end,
           float* out) {
  using C = std::conditional_t<sizeof(A) == 2, BFloat16Columns, Float32Columns>;
  const int64_t count = end - begin, size = heads.size;
  constexpr int64_t group = 2 * kLanes;
  float scores[G][kBlock];
  for (int64_t t = 0; t < count; t++) {
    const A* key = reinterpret_cast<const A*>(heads.key(begin + t));
    F sums[G];
    for (int g = 0; g < G; g++) sums[g] = zero();
    int64_t c = 0;
    for (; c + group <= size; c += group) {
      const F first = C::first(key + c), second = C::second(key + c);
      for (int g = 0; g < G; g++) {
        sums[g] = fma(first, load(q[g] + c), sums[g]);
        sums[g] = fma(second, load(q[g] + c + kLanes), sums[g]);
      }
    }
    if (c < size) {
      A rest[group] = {};
      std::memcpy(rest, key + c, (size - c) * sizeof(A));
      for (int g = 0; g < G; g++) {
        sums[g] = fma(C::first(rest), load(q[g] + c), sums[g]);
        sums[g] = fma(C::second(rest), load(q[g] + c + kLanes), sums[g]);
      }
    }
    for (int g = 0; g < G; g++) scores[g][t] = sum(sums[g]) * heads.scale;
  }
  for (int g = 0; g < G; g++) {
    float* part = out + g * (size + 2);
    if (heads.softcap != 0)
      for (int64_t t = 0; t < count; t++)
        scores[g][t] = std::tanh(scores[g][t] / heads.softcap) * heads.softcap;
    float most = -INFINITY, total = 0;
    for (int64_t t = 0; t < count; t++) most = scores[g][t] > most ? scores[g][t] : most;
    for (int64_t t = 0; t < count; t++) scores[g][t] = exponential(scores[g][t] - most);
    for (int64_t t = 0; t < count; t++) total += scores[g][t];
    part[0] = most;
    part[1] = total;
  }
  int64_t d = 0;
  for (; d + group <= size; d += group) {
    F sums[G][2];
    for (int g = 0; g < G; g++) sums[g][0] = sums[g][1] = zero();
    for (int64_t t = 0; t < count; t++) {
      const A* value = reinterpret_cast<const A*>(heads.value(begin + t)) + d;
      const F low = numbers(value), high = numbers(value + kLanes);
      for (int g = 0; g < G; g++) {
        const F share = all(scores[g][t]);
        sums[g][0] = fma(share, low, sums[g][0]);
        sums[g][1] = fma(share, high, sums[g][1]);
      }
    }
    for (int g = 0; g < G; g++)
      for (int i = 0; i < 2; i++) store(out + g * (size + 2) + 2 + d + i * kLanes, sums[g][i]);
  }
  for (; d < size; d++)
    for (int g = 0; g < G; g++) {
      float sum = 0;
      for (int64_t t = 0; t < count; t++)
        sum = std::fmaf(scores[g][t], widened(reinterpret_cast<const A*>(heads.value(begin + t))[d]), sum);
      out[g * (size + 2) + 2 + d] = sum;
    }
}

template <class A>
void some_heads(int count, const float (*q)[kMostHeadSize], const Heads& heads, int64_t begin,
                int64_t end, float* out) {
  switch (count) {
    case 1: return block<A, 1>(q, heads, begin, end, out);
    case 2: return block<A, 2>(q, heads, begin, end, out);
    case 3: return block<A, 3>(q, heads, begin, end, out);
    case 4: return block<A, 4>(q, heads, begin, end, out);
  }
}

// Join what the next block gives to what the blocks before it gave.
inline void join(float* state, const float* part, int64_t size) {
  const float most = part[0] > state[0] ? part[0] : state[0];
  const float before = exponential(state[0] - most), now = exponential(part[0] - most);
  state[0] = most;
  state[1] = state[1] * before + part[1] * now;
  for (int64_t d = 0; d < size; d++) state[2 + d] = state[2 + d] * before + part[2 + d] * now;
}

// q[R, N, D] over keys and values. Sizes: N, K, D, elements of a row of q, bytes from slot to slot
// and from KV head to KV head, first position of the keys, window or 0. Operands: q, k, v, slots or
// nothing, out [R, N D], parts [blocks of the longest row, R, N, D + 2].
template <class A>
void attention(const Op& op, const Step& step, Team& team) {
  const int64_t heads = op.size[0], kv_heads = op.size[1], size = op.size[2];
  const int64_t first_held = op.size[6], window = op.size[7];
  const int64_t group = heads / kv_heads, pieces = (group + kSomeHeads - 1) / kSomeHeads;
  const int64_t last = step.start + step.rows;
  const A* q = operand<A>(op, step, 0);
  A* out = operand<A>(op, step, 4);
  float* parts = operand<float>(op, step, 5);
  auto first_of = [&](int64_t r) {
    const int64_t position = step.start + r;
    return (window && position >= window ? position - window + 1 : 0) - first_held;
  };
  auto end_of = [&](int64_t r) { return step.start + r + 1 - first_held; };
  const int64_t longest = window && window < last ? window : last;
  const int64_t blocks = (longest + kBlock - 1) / kBlock, width = size + 2;
  team.each(blocks * step.rows * kv_heads * pieces, [&](int64_t unit) {
    const int64_t piece = unit % pieces, kv_head = unit / pieces % kv_heads;
    const int64_t r = unit / pieces / kv_heads % step.rows;
    const int64_t index = unit / pieces / kv_heads / step.rows;
    const int64_t begin = first_of(r) + index * kBlock, end = end_of(r);
    if (begin >= end) return;
    Heads shared = {operand<char>(op, step, 1) + kv_head * op.size[5],
                    operand<char>(op, step, 2) + kv_head * op.size[5],
                    op.size[4],
                    operand<int64_t>(op, step, 3),
                    size,
                    float(op.real[0]),
                    float(op.real[1])};
    const int64_t head = kv_head * group + piece * kSomeHeads;
    const int64_t left = group - piece * kSomeHeads, count = left < kSomeHeads ? left : kSomeHeads;
    float ordered[kSomeHeads][kMostHeadSize];
    for (int64_t g = 0; g < count; g++)
      put_in_order(op.type, q + r * op.size[3] + (head + g) * size, size, ordered[g]);
    some_heads<A>(int(count), ordered, shared, begin, begin + kBlock < end ? begin + kBlock : end,
                  parts + ((index * step.rows + r) * heads + head) * width);
  });
  team.each(step.rows * heads, [&](int64_t unit) {
    const int64_t r = unit / heads, count = end_of(r) - first_of(r);
    float* state = parts + unit * width;
    for (int64_t index = 1; index * kBlock < count; index++)
      join(state, parts + (index * step.rows * heads + unit) * width, size);
    for (int64_t d = 0; d < size; d++) out[unit * size + d] = rounded<A>(state[2 + d] / state[1]);
  });
}

}  // namespace ISA
