// One operation as the caller describes it, and the team of threads that carries it out together.
#pragma once
#include <atomic>
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

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

// Threads that run the same code side by side. Which of them takes a unit of work is left to
// chance; a unit's result must not depend on it.
class Team {
 public:
  explicit Team(int size) : size_(size) {}
  int size() const { return size_; }

  // All arrive before one goes on.
  void barrier();

  // Every unit in [0, count) once, by one thread each; all are done when it returns.
  template <class Work>
  void each(int64_t count, Work work) {
    if (size_ == 1) {
      for (int64_t unit = 0; unit < count; unit++) work(unit);
      return;
    }
    for (;;) {
      int64_t unit = next_.fetch_add(1, std::memory_order_relaxed);
      if (unit >= count) break;
      work(unit);
    }
    barrier();
  }

 private:
  const int size_;
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> round_{0};
};
