// The operations for avx2.
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif
#define ISA_AVX2
#define ISA avx2
#include "ops.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
