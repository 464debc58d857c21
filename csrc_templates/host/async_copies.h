// Asynchronous copies of one thread, executed only in wait(). Until then the destination is filled
// with NaNs, so that reads before wait(), and late reads of the previous contents, are detected.
#pragma once

namespace tf {

template <int Most>
struct AsyncCopies {
  TF_DEVICE explicit AsyncCopies(unsigned char* shared) : begin(shared) {}
  template <int N, class T>
  TF_DEVICE void copy(int place, const T* from TF_SITE_PARAM) {
    constexpr int bytes = N * (int)sizeof(T);
    static_assert(bytes == 4 || bytes == 8 || bytes == 16, "one access");
    unsigned char* const to = begin + place;
    TF_ASSERT((unsigned long long)to % bytes == 0, "misaligned asynchronous copy");
    TF_ASSERT((unsigned long long)from % bytes == 0, "misaligned asynchronous copy");
    TF_ASSERT(count < Most, "more asynchronous copies under way than were named");
    __builtin_memset(to, 0xff, bytes);
    pending[count++] = {to, from, bytes, TF_HERE};
  }
  TF_DEVICE void wait() {
    for (int i = 0; i < count; ++i)
      __builtin_memcpy(pending[i].to, pending[i].from, pending[i].bytes);
    count = 0;
  }
#ifdef TF_CHECKS
  // Pending copies would write to the shared memory of the next block.
  __forceinline__ ~AsyncCopies() {
    if (count) tf_fail("nothing waits for the asynchronous copy", pending[count - 1].site);
  }
#endif

 private:
  struct Copy {
    void* to;
    const void* from;
    int bytes;
    tf_site site;
  };
  unsigned char* const begin;
  Copy pending[Most];
  int count = 0;
};

}  // namespace tf
