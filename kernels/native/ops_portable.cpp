// The operations for portable: any processor with a C++ compiler.
#define ISA portable
#include "ops.h"
