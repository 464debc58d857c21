// Reads at an index that data decide.
#pragma once

#include "prelude.cuh"

namespace tf {

// `index` if there is such an element; an error of the program if there is not and it is needed.
// What it returns is always below `extent`: a lane that computes in vain reads nothing outside.
TF_DEVICE long long position(long long index, long long extent, bool needed, const char* format) {
  const bool exists = (unsigned long long)index < (unsigned long long)extent;
  if (needed && !exists) TF_FAIL_INDEX(format, index);
  return exists ? index : 0;
}

}  // namespace tf
