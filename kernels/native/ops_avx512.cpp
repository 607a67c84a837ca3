// The operations for avx512.
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")
#endif
#define ISA_AVX512
#define ISA avx512
#include "ops.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
