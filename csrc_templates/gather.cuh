// Bounds check of gather indices (indices that are data).
#pragma once

#include "prelude.cuh"

namespace tf {

// Returns `index` if it is in [0, extent), else 0, with an index error if `needed`. The result is
// always in range, so that lanes whose result is unused do not read out of bounds.
TF_DEVICE long long checked_position(long long index, long long extent, bool needed,
                                     const char* format) {
  const bool exists = (unsigned long long)index < (unsigned long long)extent;
  if (needed && !exists) TF_FAIL_INDEX(format, index, extent);
  return exists ? index : 0;
}

}  // namespace tf
