// Where an operation's operands are, and arithmetic that several operations share.
#pragma once
#include "numbers.h"
#include "op.h"
#include "team.h"

namespace ISA {

template <class T>
inline T* operand(const Op& op, const Step& step, int index) {
  int64_t address = op.operand[index];
  if ((op.relative >> index) & 1) return reinterpret_cast<T*>(step.scratch + step.rows * address);
  return reinterpret_cast<T*>(address);
}

inline float row_scale(const void* scales, int64_t row, int32_t flags) {
  if (flags & kHalfScales) return half_of(static_cast<const uint16_t*>(scales)[row]);
  return static_cast<const float*>(scales)[row];
}

template <class A>
inline A gated(A gate, A up) {
  const float x = widened(gate);
  const A activated = rounded<A>(x / (1.f + exponential(-x)));
  return rounded<A>(widened(activated) * widened(up));
}

}  // namespace ISA
