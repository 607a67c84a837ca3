// Causal grouped-query attention, a row and a KV head at a time.
//
// A row's positions are taken in blocks of 64 from the first one it reads; each block gives its
// largest score, the sum of its exponentials and its weighted values, and blocks are joined in
// order. So a row's bits depend on its position and window alone, whoever computes which block.
#pragma once
#include <type_traits>

#include "operands.h"
#include "product.h"

namespace ISA {

constexpr int64_t kBlock = 64;
constexpr int kSomeHeads = 4;
constexpr int64_t kMostHeadSize = 1024;
constexpr int kSomeKeys = 8;

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

// K keys by G heads, before lanes are joined: those of head g and key k are sums[g][first + k].
template <class A, int G, int K>
inline void dots(const float (*q)[kMostHeadSize], const A* const* keys, int64_t size,
                 F (*sums)[kSomeKeys], int first) {
  using C = std::conditional_t<sizeof(A) == 2, BFloat16Columns, Float32Columns>;
  constexpr int64_t group = 2 * kLanes;
  F all[K][G];
#pragma GCC unroll 8
  for (int k = 0; k < K; k++)
#pragma GCC unroll 8
    for (int g = 0; g < G; g++) all[k][g] = zero();
  auto add_columns = [&](int64_t c, const A* columns, int k) {
#pragma GCC unroll 2
    for (int part = 0; part < 2; part++) {
      const F some = part ? C::second(columns) : C::first(columns);
#pragma GCC unroll 8
      for (int g = 0; g < G; g++) all[k][g] = fma(some, load(q[g] + c + part * kLanes), all[k][g]);
    }
  };
  int64_t c = 0;
  for (; c + group <= size; c += group)
#pragma GCC unroll 8
    for (int k = 0; k < K; k++) add_columns(c, keys[k] + c, k);
  if (c < size)
#pragma GCC unroll 8
    for (int k = 0; k < K; k++) {
      A rest[group] = {};
      std::memcpy(rest, keys[k] + c, (size - c) * sizeof(A));
      add_columns(c, rest, k);
    }
#pragma GCC unroll 8
  for (int k = 0; k < K; k++)
#pragma GCC unroll 8
    for (int g = 0; g < G; g++) sums[g][first + k] = all[k][g];
}

// Heads' keys and values lie apart from position to position, where nothing foresees them.
inline void ask_for(const char* row, int64_t bytes) {
  for (int64_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch(row + byte, 0, 3);
}

// The scores of positions [begin, end).
template <class A, int G>
void score(const float (*q)[kMostHeadSize], const Heads& heads, int64_t begin, int64_t end,
           float (*scores)[kBlock]) {
  constexpr int K = G < 4 ? 4 : 2;
  const int64_t head_bytes = heads.size * int64_t(sizeof(A));
  F parts[G][kSomeKeys];
  for (int64_t at = begin; at < end; at += kSomeKeys) {
    const int some = int(end - at < kSomeKeys ? end - at : kSomeKeys);
    const A* keys[kSomeKeys];
    for (int k = 0; k < kSomeKeys; k++) {
      const int64_t t = at + (k < some ? k : 0);
      keys[k] = reinterpret_cast<const A*>(heads.key(t));
      ask_for(heads.value(t), head_bytes);
      if (t + kSomeKeys < end) ask_for(heads.key(t + kSomeKeys), head_bytes);
    }
#pragma GCC unroll 4
    for (int k = 0; k < kSomeKeys; k += K) dots<A, G, K>(q, keys + k, heads.size, parts, k);
    for (int g = 0; g < G; g++) {
      float* eight = scores[g] + at - begin;
      sums(parts[g], eight);
      for (int k = 0; k < kSomeKeys; k++) eight[k] *= heads.scale;
    }
  }
}

// Shares by values, W vectors of elements at a time from d on; returns where fewer are left.
template <class A, int G, int W>
int64_t weigh(const float (*scores)[kBlock], const Heads& heads, int64_t begin, int64_t end, int64_t d,
              float* out) {
  for (; d + W * kLanes <= heads.size; d += W * kLanes) {
    F sums[G][W];
    for (int g = 0; g < G; g++)
      for (int i = 0; i < W; i++) sums[g][i] = zero();
    for (int64_t t = 0; t < end - begin; t++) {
      const A* value = reinterpret_cast<const A*>(heads.value(begin + t)) + d;
      F shares[G];
#pragma GCC unroll 4
      for (int g = 0; g < G; g++) shares[g] = all(scores[g][t]);
#pragma GCC unroll 4
      for (int i = 0; i < W; i++) {
        const F some = numbers(value + i * kLanes);
#pragma GCC unroll 4
        for (int g = 0; g < G; g++) sums[g][i] = fma(shares[g], some, sums[g][i]);
      }
    }
    for (int g = 0; g < G; g++)
      for (int i = 0; i < W; i++) store(out + g * (heads.size + 2) + 2 + d + i * kLanes, sums[g][i]);
  }
  return d;
}

// What a block of positions gives for each of G heads: [largest score, sum, D values].
template <class A, int G>
void block(const float (*q)[kMostHeadSize], const Heads& heads, int64_t begin, int64_t end,
           float* out) {
  const int64_t count = end - begin, size = heads.size;
  float scores[G][kBlock];
  score<A, G>(q, heads, begin, end, scores);
  for (int g = 0; g < G; g++) {
    float* part = out + g * (size + 2);
    if (heads.softcap != 0)
      for (int64_t t = 0; t < count; t++)
        scores[g][t] = std::tanh(scores[g][t] / heads.softcap) * heads.softcap;
    const float most = most_of_eights(scores[g], count);
    for (int64_t t = 0; t < count; t++) scores[g][t] = exponential(scores[g][t] - most);
    part[0] = most;
    part[1] = sum_of_eights(scores[g], count);
  }
  int64_t d = weigh<A, G, G < 4 ? 4 : 2>(scores, heads, begin, end, 0, out);
  d = weigh<A, G, 1>(scores, heads, begin, end, d, out);
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
// nothing, out [R, N D], parts: of one row [its blocks, N, D + 2], of more [R, N, D + 2].
template <class A>
void attention(const Op& op, const Step& step, Team& team) {
  const int64_t heads = op.size[0], kv_heads = op.size[1], size = op.size[2], width = size + 2;
  const int64_t first_held = op.size[6], window = op.size[7];
  const int64_t group = heads / kv_heads, pieces = (group + kSomeHeads - 1) / kSomeHeads;
  const A* q = operand<A>(op, step, 0);
  A* out = operand<A>(op, step, 4);
  float* parts = operand<float>(op, step, 5);
  auto first_of = [&](int64_t r) {
    const int64_t position = step.start + r;
    return (window && position >= window ? position - window + 1 : 0) - first_held;
  };
  auto end_of = [&](int64_t r) { return step.start + r + 1 - first_held; };
  // The blocks of one row are shared among threads; of several rows each is one thread's.
  const bool is_shared = step.rows == 1;
  const int64_t blocks = is_shared ? (end_of(0) - first_of(0) + kBlock - 1) / kBlock : 1;
  auto finish = [&](int64_t unit) {
    const float* state = parts + unit * width;
    for (int64_t d = 0; d < size; d++) out[unit * size + d] = rounded<A>(state[2 + d] / state[1]);
  };
  team.each(blocks * step.rows * kv_heads * pieces, [&](int64_t unit) {
    const int64_t piece = unit % pieces, kv_head = unit / pieces % kv_heads;
    const int64_t r = unit / pieces / kv_heads % step.rows;
    const int64_t index = unit / pieces / kv_heads / step.rows;
    const Heads shared = {operand<char>(op, step, 1) + kv_head * op.size[5],
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
    auto positions = [&](int64_t begin, float* to) {
      const int64_t end = end_of(r);
      some_heads<A>(int(count), ordered, shared, begin, begin + kBlock < end ? begin + kBlock : end, to);
    };
    float* state = parts + (index * step.rows * heads + r * heads + head) * width;
    int64_t begin = first_of(r) + index * kBlock;
    positions(begin, state);
    if (is_shared) return;
    float next[kSomeHeads * (kMostHeadSize + 2)];
    for (begin += kBlock; begin < end_of(r); begin += kBlock) {
      positions(begin, next);
      for (int64_t g = 0; g < count; g++) join(state + g * width, next + g * width, size);
    }
    for (int64_t g = 0; g < count; g++) finish(r * heads + head + g);
  });
  if (!is_shared) return;
  team.each(heads, [&](int64_t head) {
    for (int64_t index = 1; index < blocks; index++)
      join(parts + head * width, parts + (index * heads + head) * width, size);
    finish(head);
  });
}

}  // namespace ISA
