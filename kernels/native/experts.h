// A gated mixture of experts: each expert's weights are read once, for all rows that go to it.
#pragma once
#include "operands.h"
#include "product.h"

namespace ISA {

// One expert's share of a bank's tensors.
struct Bank {
  Weight weight;
  int64_t outputs;
  const char* row_scales;
  int32_t flags;
  Weight of(int64_t expert) const {
    Weight one = weight;
    one.data += expert * outputs * weight.row_bytes;
    if (one.block_scales) one.block_scales += expert * outputs * (weight.columns / 16);
    return one;
  }
  float scale(int64_t expert, int64_t row) const {
    return row_scales ? row_scale(row_scales, expert * outputs + row, flags) : 1.f;
  }
};

// Products of the pairs' rows with outputs [begin, end) of one expert; take(pair, output, value).
template <class Row, class Take>
void expert_product(const Bank& bank, int64_t expert, const int64_t* pairs, int64_t count,
                    int64_t begin, int64_t end, Row row, Take take) {
  constexpr int64_t most = 32;
  float sums[kTileRows * most];
  const Weight weight = bank.of(expert);
  for (int64_t o = begin; o < end; o += most) {
    const int64_t stop = o + most < end ? o + most : end;
    for (int64_t first = 0; first < count; first += kTileRows) {
      const int64_t some = count - first < kTileRows ? count - first : kTileRows;
      const float* rows[kTileRows];
      for (int64_t i = 0; i < some; i++) rows[i] = row(pairs[first + i]);
      product(rows, some, weight, o, stop, sums, most);
      for (int64_t i = 0; i < some; i++)
        for (int64_t j = o; j < stop; j++)
          take(pairs[first + i], j, sums[i * most + j - o] * bank.scale(expert, j));
    }
  }
}

// How many outputs a unit of work takes, where `outputs` of them are shared out among `units`. Long
// runs: where a thread jumps to, nothing has been foreseen.
inline int64_t outputs_of_unit(int64_t outputs, int64_t units) {
  constexpr int64_t least = 32;
  const int64_t wanted = (outputs + units - 1) / units;
  return wanted < least ? least : (wanted + least - 1) / least * least;
}

// Sizes: k, E, H, I. Operands: x [R, H], ids [R, k], weights [R, k], codes, block scales and row
// scales of gate and up, the same of down, out float32 [R, H], scratch. A plain bank rounds the
// outputs of both products and the activations to its type.
template <class A>
void experts(const Op& op, const Step& step, Team& team) {
  const int64_t top = op.size[0], num = op.size[1], hidden = op.size[2], inner = op.size[3];
  const int64_t num_pairs = step.rows * top;
  const bool is_packed = op.weight == kNvFp4;
  const int64_t cell = is_packed ? 0 : int64_t(sizeof(A));
  auto bank = [&](int at, int64_t outputs, int64_t columns) {
    const int64_t row_bytes = is_packed ? columns / 2 : columns * cell;
    return Bank{{op.weight, operand<char>(op, step, at), columns, row_bytes,
                 operand<uint8_t>(op, step, at + 1)},
                outputs, operand<char>(op, step, at + 2), op.flags};
  };
  const Bank up = bank(3, 2 * inner, hidden), down = bank(6, hidden, inner);
  const A* x = operand<A>(op, step, 0);
  const int64_t* ids = operand<int64_t>(op, step, 1);
  const float* shares = operand<float>(op, step, 2);
  float* out = operand<float>(op, step, 9);
  const int64_t wide = padded_columns(op.weight, hidden), wide_inner = padded_columns(op.weight, inner);
  float* ordered = operand<float>(op, step, 10);
  float* sums = ordered + step.rows * wide;
  float* activated = sums + num_pairs * 2 * inner;
  // Pairs of a row and an expert, by expert: those of expert e are pairs[begin[e]] and on.
  int64_t* begin = reinterpret_cast<int64_t*>(activated + num_pairs * wide_inner);
  int64_t* pairs = begin + num + 1;
  int64_t* touched = pairs + num_pairs;  // the experts that have any, and their number at the end

  team.each(step.rows + 1, [&](int64_t r) {
    if (r > 0) {
      put_in_order(op.weight, x + (r - 1) * hidden, hidden, ordered + (r - 1) * wide);
      return;
    }
    for (int64_t e = 0; e <= num; e++) begin[e] = 0;
    for (int64_t p = 0; p < num_pairs; p++) begin[ids[p] + 1]++;
    int64_t count = 0;
    for (int64_t e = 0; e < num; e++) {
      if (begin[e + 1]) touched[count++] = e;
      begin[e + 1] += begin[e];
    }
    touched[num] = count;
    for (int64_t p = 0; p < num_pairs; p++) pairs[begin[ids[p]]++] = p;
    for (int64_t e = num; e > 0; e--) begin[e] = begin[e - 1];
    begin[0] = 0;
  });
  const int64_t units = 8 * team.size(), count = touched[num];
  const int64_t chunk = outputs_of_unit(2 * inner, count > 0 ? (units + count - 1) / count : 1);
  const int64_t chunks = (2 * inner + chunk - 1) / chunk;
  team.each(count * chunks, [&](int64_t unit) {
    const int64_t e = touched[unit / chunks], first = unit % chunks * chunk;
    expert_product(
        up, e, pairs + begin[e], begin[e + 1] - begin[e], first,
        first + chunk < 2 * inner ? first + chunk : 2 * inner,
        [&](int64_t pair) { return ordered + pair / top * wide; },
        [&](int64_t pair, int64_t o, float value) { sums[pair * 2 * inner + o] = value; });
  });
  team.each(num_pairs, [&](int64_t pair) {
    float* gate = sums + pair * 2 * inner;
    for (int64_t i = 0; i < inner; i++)
      gate[i] = is_packed ? gated(gate[i], gate[inner + i])
                          : widened(gated(rounded<A>(gate[i]), rounded<A>(gate[inner + i])));
    put_in_order(op.weight, gate, inner, activated + pair * wide_inner);
  });
  const int64_t part = outputs_of_unit(hidden, units);
  team.each((hidden + part - 1) / part, [&](int64_t unit) {
    const int64_t first = unit * part, end = first + part < hidden ? first + part : hidden;
    for (int64_t r = 0; r < step.rows; r++)
      for (int64_t h = first; h < end; h++) out[r * hidden + h] = 0;
    for (int64_t i = 0; i < count; i++) {
      const int64_t e = touched[i];
      expert_product(
          down, e, pairs + begin[e], begin[e + 1] - begin[e], first, end,
          [&](int64_t pair) { return activated + pair * wide_inner; },
          [&](int64_t pair, int64_t h, float value) {
            const float near = is_packed ? value : widened(rounded<A>(value));
            out[pair / top * hidden + h] += near * shares[pair];
          });
    }
  });
}

}  // namespace ISA
