// Running one piece of work on several threads at once.
#pragma once
#include "op.h"

using Work = void (*)(void* argument, Team& team);

// Call `work` on `size` threads, this one among them, and wait for all.
void run_together(int size, Work work, void* argument);
