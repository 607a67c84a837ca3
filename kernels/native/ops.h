// The operations, each carried out by a team. Included once per instruction set.
//
// Shapes: R rows of the step, C columns, O outputs, N heads, K KV heads, G = N / K, D head size,
// T positions, H hidden and I intermediate size, E experts, k experts of a row.
#pragma once
#include "attention.h"
#include "experts.h"
#include "operands.h"
#include "product.h"

namespace ISA {

constexpr int64_t kMostOutputs = 192;
constexpr int64_t kRunBytes = 256 << 10;
constexpr int64_t kPanelFloats = 32 << 10;

// Rows of a weight of one unit of work. For few rows memory decides: a thread that jumps to another
// place after 27 KB reads a sixth slower, since nothing foresaw its jump, and what was foreseen is
// another thread's. So there are long runs, as many for each thread. For many rows, what its cache
// holds in float32.
inline int64_t rows_of_unit(int64_t rows, int64_t outputs, int64_t columns, int64_t row_bytes, int size) {
  if (rows > kTileRows) {
    const int64_t wanted = kPanelFloats / (columns > 0 ? columns : 1) / 12 * 12;
    return wanted < 12 ? 12 : wanted > kMostOutputs ? kMostOutputs : wanted;
  }
  const int64_t each = outputs * row_bytes / size / kRunBytes, units = size * (each < 1 ? 1 : each);
  const int64_t wanted = (outputs + units - 1) / units;
  return wanted < 12 ? 12 : (wanted + 11) / 12 * 12;
}

// x[R, N, H] (+ added) / rms * factor. Sizes: N, H. Operands: x, weight, out, added, total.
template <class A>
void rms_norm(const Op& op, const Step& step, Team& team) {
  const int64_t heads = op.size[0], size = op.size[1];
  const A* x = operand<A>(op, step, 0);
  const A* weight = operand<A>(op, step, 1);
  A* out = operand<A>(op, step, 2);
  const A* added = operand<A>(op, step, 3);
  A* total = operand<A>(op, step, 4);
  const float offset = op.flags & kUnitOffset ? 1.f : 0.f;
  team.each(step.rows * heads, [&](int64_t unit) {
    const A* row = x + unit * size;
    A* to = out + unit * size;
    if (added) {
      for (int64_t i = 0; i < size; i++)
        total[unit * size + i] = rounded<A>(widened(row[i]) + widened(added[unit * size + i]));
      row = total + unit * size;
    }
    float squares[8] = {};
    int64_t i = 0;
    for (; i + 8 <= size; i += 8)
      for (int lane = 0; lane < 8; lane++) {
        float value = widened(row[i + lane]);
        squares[lane] += value * value;
      }
    for (int lane = 0; i < size; i++, lane++) squares[lane] += widened(row[i]) * widened(row[i]);
    for (int half = 4; half; half /= 2)
      for (int lane = 0; lane < half; lane++) squares[lane] += squares[lane + half];
    const float scale = 1.f / std::sqrt(squares[0] / float(size) + float(op.real[0]));
    if (weight)
      for (int64_t i = 0; i < size; i++)
        to[i] = rounded<A>(widened(row[i]) * scale * (widened(weight[i]) + offset));
    else
      for (int64_t i = 0; i < size; i++) to[i] = rounded<A>(widened(row[i]) * scale);
  });
}

// x[R, C] weight[O, C]^T + bias. Sizes: C, O, bytes of a weight row. Operands: x, weight, bias, out,
// residual and sum [R, O], x in order, block scales, row scales.
template <class A>
void linear(const Op& op, const Step& step, Team& team) {
  const int64_t columns = op.size[0], outputs = op.size[1], rows = step.rows;
  const Weight weight = {op.weight, operand<char>(op, step, 1), columns, op.size[2],
                         operand<uint8_t>(op, step, 7)};
  const A* x = operand<A>(op, step, 0);
  const A* bias = operand<A>(op, step, 2);
  void* out = operand<void>(op, step, 3);
  const A* residual = operand<A>(op, step, 4);
  A* sum = operand<A>(op, step, 5);
  float* ordered = operand<float>(op, step, 6);
  const void* scales = operand<void>(op, step, 8);
  const int64_t padded = padded_columns(op.weight, columns);
  const float unit_value = op.weight == kE4M3 ? 256.f : 1.f;  // E4M3 is read as 2^-8 of itself

  team.each(rows, [&](int64_t r) {
    put_in_order(op.weight, x + r * columns, columns, ordered + r * padded);
  });
  const int64_t chunk = rows_of_unit(rows, outputs, columns, op.size[2], team.size());
  const bool is_widened = op.weight == kBFloat16 && rows > 2 * kTileRows && 3 * padded <= kPanelFloats;
  const int64_t most = is_widened && kMostOutputs * padded > kPanelFloats
                           ? kPanelFloats / padded / 3 * 3 : kMostOutputs;
  auto block = [&](int64_t begin, int64_t end) {
    const int64_t count = end - begin;
    float sums[kTileRows * kMostOutputs];
    float panel[kPanelFloats];
    const Weight used = is_widened ? widened_rows(weight, begin, end, panel) : weight;
    const int64_t first_used = is_widened ? 0 : begin;
    for (int64_t first = 0; first < rows; first += kTileRows) {
      const int64_t some = rows - first < kTileRows ? rows - first : kTileRows;
      const float* x_rows[kTileRows];
      for (int64_t r = 0; r < some; r++) x_rows[r] = ordered + (first + r) * padded;
      product(x_rows, some, used, first_used, first_used + count, sums, kMostOutputs);
      for (int64_t r = 0; r < some; r++) {
        float* row = sums + r * kMostOutputs;
        const int64_t at = (first + r) * outputs + begin;
        if (scales)
          for (int64_t i = 0; i < count; i++)
            row[i] *= row_scale(scales, op.flags & kOneScale ? 0 : begin + i, op.flags) * unit_value;
        if (bias)
          for (int64_t i = 0; i < count; i++) row[i] += widened(bias[begin + i]);
        if (op.flags & (kFloatOut | kWidenedOut)) {
          float* to = static_cast<float*>(out) + at;
          const bool is_rounded = op.flags & kWidenedOut;
          for (int64_t i = 0; i < count; i++)
            to[i] = is_rounded ? widened(rounded<A>(row[i])) : row[i];
        } else {
          A* to = static_cast<A*>(out) + at;
          for (int64_t i = 0; i < count; i++) to[i] = rounded<A>(row[i]);
          if (residual)
            for (int64_t i = 0; i < count; i++)
              sum[at + i] = rounded<A>(widened(residual[at + i]) + widened(to[i]));
        }
      }
    }
  };
  team.each((outputs + chunk - 1) / chunk, [&](int64_t unit) {
    const int64_t end = (unit + 1) * chunk < outputs ? (unit + 1) * chunk : outputs;
    for (int64_t begin = unit * chunk; begin < end; begin += most)
      block(begin, begin + most < end ? begin + most : end);
  });
}

// Rotate x[R, N, D]. Sizes: N, D, elements of a row of x. Operands: x, cos and sin [T, D / 2], out.
template <class A>
void rope(const Op& op, const Step& step, Team& team) {
  const int64_t heads = op.size[0], half = op.size[1] / 2;
  const float* all_cos = operand<float>(op, step, 1);
  const float* all_sin = operand<float>(op, step, 2);
  team.each(step.rows, [&](int64_t r) {
    const float* cos = all_cos + (step.start + r) * half;
    const float* sin = all_sin + (step.start + r) * half;
    for (int64_t n = 0; n < heads; n++) {
      const A* x = operand<A>(op, step, 0) + r * op.size[2] + n * 2 * half;
      A* out = operand<A>(op, step, 3) + (r * heads + n) * 2 * half;
      for (int64_t i = 0; i < half; i++) {
        const float a = widened(x[i]), b = widened(x[half + i]);
        out[i] = rounded<A>(a * cos[i] - b * sin[i]);
        out[half + i] = rounded<A>(b * cos[i] + a * sin[i]);
      }
    }
  });
}

// Copy rows into a cache, to the slots of their positions. Sizes: bytes of a slot; bytes from row to
// row of k and of v; where in a row k and v begin. Operands: k rows, v rows, k cache, v cache.
inline void store(const Op& op, const Step& step, Team& team) {
  team.each(step.rows, [&](int64_t r) {
    for (int part = 0; part < 2; part++)
      std::memcpy(operand<char>(op, step, 2 + part) + (step.start + r) * op.size[0],
                  operand<char>(op, step, part) + r * op.size[1 + part] + op.size[3 + part],
                  op.size[0]);
  });
}

// silu(gate) * up of x[R, 2 I], rounded after each. Size: I. Operands: x, out.
template <class A>
void silu_gated(const Op& op, const Step& step, Team& team) {
  const int64_t size = op.size[0], chunk = 512, chunks = (size + chunk - 1) / chunk;
  team.each(step.rows * chunks, [&](int64_t unit) {
    const int64_t r = unit / chunks, begin = unit % chunks * chunk;
    const int64_t end = begin + chunk < size ? begin + chunk : size;
    const A* gate = operand<A>(op, step, 0) + r * 2 * size;
    A* out = operand<A>(op, step, 1) + r * size;
    for (int64_t i = begin; i < end; i++) out[i] = gated<A>(gate[i], gate[size + i]);
  });
}

// The lowest index of the largest of float32 x[V], that value and the second largest; a NaN counts
// as the largest. Size: V. Operands: x, out [3] as float64.
inline void greedy(const Op& op, const Step& step, Team& team) {
  team.each(1, [&](int64_t) {
    const float* x = operand<float>(op, step, 0);
    double* out = operand<double>(op, step, 1);
    const int64_t size = op.size[0], part = 4096;
    int64_t at = 0;
    float best = -INFINITY, second = -INFINITY;
    bool found = false;
    for (int64_t begin = 0; begin < size; begin += part) {
      const int64_t end = begin + part < size ? begin + part : size;
      // Most parts hold nothing above the second largest so far; the compiler makes this quick.
      int above = 0;
      for (int64_t i = begin; i < end; i++) above |= !(x[i] <= second);
      if (!above && found) continue;
      for (int64_t i = begin; i < end; i++) {
        if (std::isnan(x[i])) {
          out[0] = double(i), out[1] = NAN, out[2] = NAN;
          return;
        }
        if (!found || x[i] > best) {
          if (found) second = best;
          best = x[i], at = i, found = true;
        } else if (x[i] > second) {
          second = x[i];
        }
      }
    }
    out[0] = double(at), out[1] = best, out[2] = second;
  });
}

template <class A>
void typed(const Op& op, const Step& step, Team& team) {
  switch (op.kind) {
    case kRmsNorm: return rms_norm<A>(op, step, team);
    case kLinear: return linear<A>(op, step, team);
    case kRope: return rope<A>(op, step, team);
    case kAttention: return attention<A>(op, step, team);
    case kSiluGated: return silu_gated<A>(op, step, team);
    case kExperts: return experts<A>(op, step, team);
    case kStore: return store(op, step, team);
    case kGreedy: return greedy(op, step, team);
  }
}

void run(const Op* ops, int64_t count, const Step& step, Team& team) {
  for (int64_t i = 0; i < count; i++) {
    if (ops[i].type == kBFloat16) typed<uint16_t>(ops[i], step, team);
    else typed<float>(ops[i], step, team);
  }
}

}  // namespace ISA
