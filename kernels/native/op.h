// One operation as the caller describes it.
#pragma once
#include <cstdint>

enum Kind : int32_t {
  kRmsNorm = 1,
  kLinear = 2,
  kRope = 3,
  kStore = 4,
  kAttention = 5,
  kSiluGated = 6,
  kGreedy = 7,
  kExperts = 8,
};
enum Type : int32_t { kFloat32 = 0, kBFloat16 = 1, kE4M3 = 2, kNvFp4 = 3 };
enum Flag : int32_t {
  kUnitOffset = 1,   // the norm's factor is 1 + weight
  kFloatOut = 2,     // sums are stored as float32, not rounded
  kWidenedOut = 4,   // sums are rounded, and stored as float32
  kOneScale = 8,     // one scale for all rows of the weight
  kHalfScales = 16,  // row scales are float16
};

// Layout shared with kernels/native/calls.py.
struct Op {
  int32_t kind;
  int32_t type;    // of activations
  int32_t weight;  // of weights
  int32_t flags;
  int64_t relative;  // bit i: operand i is an offset into the scratch memory, per row of the step
  int64_t size[8];
  int64_t operand[12];
  double real[2];
};

// What the operations of one call share.
struct Step {
  char* scratch;
  int64_t rows;
  int64_t start;  // position of the first row
};
