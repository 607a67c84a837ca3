// What is called from outside: plain C, no part of which depends on Python or torch.
#include <cstring>

#include "op.h"
#include "team.h"

#define DECLARED(isa) \
  namespace isa { \
  void run(const Op* ops, int64_t count, const Step& step, Team& team); \
  }
DECLARED(portable)
#if defined(__x86_64__)
DECLARED(avx2)
DECLARED(avx512)
#endif

namespace {

using Run = void (*)(const Op*, int64_t, const Step&, Team&);

struct Call {
  Run run;
  const Op* ops;
  int64_t count;
  Step step;
};

Run chosen(const char* isa) {
  if (!std::strcmp(isa, "portable")) return portable::run;
#if defined(__x86_64__)
  if (!std::strcmp(isa, "avx2") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return avx2::run;
  if (!std::strcmp(isa, "avx512") && __builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq"))
    return avx512::run;
#endif
  return nullptr;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// Digest of the sources this was built from.
const char* native_sources() { return NATIVE_SOURCES; }

// Whether this processor runs the code for an instruction set.
int native_supports(const char* isa) { return chosen(isa) != nullptr; }

// Bytes of an operation, to find a caller that lays it out otherwise.
int64_t native_op_bytes() { return sizeof(Op); }

// Carry out operations in order; 0, or 1 for an instruction set that is not there.
int native_run(const char* isa, const Op* ops, int64_t count, char* scratch, int64_t rows,
               int64_t start, int threads) {
  Run run = chosen(isa);
  if (run == nullptr) return 1;
  Call call = {run, ops, count, {scratch, rows, start}};
  run_with_helpers(
      threads,
      [](void* argument, Team& team) {
        const Call& call = *static_cast<Call*>(argument);
        call.run(call.ops, call.count, call.step, team);
      },
      &call);
  return 0;
}
}
#pragma GCC visibility pop
