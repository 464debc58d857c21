// Guard pages: memory surrounded by inaccessible pages, so that accesses out of bounds fault,
// without slowing down others; the fault becomes an error with CUDA coordinates.
#include <mutex>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "text.h"

namespace tf {

namespace {

// Bytes of inaccessible pages on each side.
constexpr size_t kMargin = 16 << 20;
// Bytes of a GPU's widest access.
constexpr size_t kAlignment = 16;
// Fill byte between the memory and the inaccessible pages.
constexpr unsigned char kFill = 0xff;

struct Guard {
  uintptr_t map, map_bytes;  // mapping with the margins
  uintptr_t body, body_bytes;
  uintptr_t memory, bytes;  // range returned to the caller
  char name[64];
  Guard* next;
};

std::mutex mutex;
Guard* guards = nullptr;
struct sigaction previous;

Guard* find(uintptr_t address) {
  for (Guard* guard = guards; guard; guard = guard->next) {
    if (address - guard->map < guard->map_bytes) return guard;
  }
  return nullptr;
}

const char* kind_of_access(void* context) {
#if defined(__x86_64__)
  const auto* user = static_cast<const ucontext_t*>(context);
  return user->uc_mcontext.gregs[REG_ERR] & 2 ? "write" : "read";
#else
  (void)context;
  return "access";
#endif
}

void on_fault(int, siginfo_t* info, void* context) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  const Guard* guard = tf_self ? find(address) : nullptr;
  if (!guard) {
    sigaction(SIGSEGV, &previous, nullptr);  // not ours: it recurs, for the previous handler
    return;
  }
  Text text;
  if (address - guard->body < guard->body_bytes) {
    text.add("write to the constant '%s'", guard->name);
  } else {
    text.add("out-of-bounds %s of '%s'", kind_of_access(context), guard->name);
  }
  text.add(" at byte offset %lld (it has %llu bytes) in ", (long long)(address - guard->memory),
           (unsigned long long)guard->bytes);
  tf_give_up(text.thread(*tf_self).c_str());
}

void install_handler() {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = on_fault;
  // SA_NODEFER: the handler never returns, so the signal must not stay blocked.
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &action, &previous);
}

}  // namespace

}  // namespace tf

void* tf_guard_alloc(unsigned long long bytes, unsigned long long like, const char* name) {
  using namespace tf;
  const size_t page = sysconf(_SC_PAGESIZE);
  // Bytes between the end of the memory and the page, so that its start is congruent to `like`.
  const size_t shift = (0 - bytes - like) % kAlignment;
  const size_t body_bytes = (bytes + shift + page - 1) / page * page;
  const size_t map_bytes = body_bytes + 2 * kMargin;
  constexpr int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* map = mmap(nullptr, map_bytes, PROT_NONE, kind, -1, 0);
  if (map == MAP_FAILED) return nullptr;
  const uintptr_t body = reinterpret_cast<uintptr_t>(map) + kMargin;
  if (mprotect(reinterpret_cast<void*>(body), body_bytes, PROT_READ | PROT_WRITE) != 0) {
    munmap(map, map_bytes);
    return nullptr;
  }
  const uintptr_t memory = body + body_bytes - shift - bytes;
  memset(reinterpret_cast<void*>(body), kFill, body_bytes);
  auto* guard = new Guard{body - kMargin, map_bytes, body, body_bytes, memory, bytes, "", nullptr};
  snprintf(guard->name, sizeof guard->name, "%s", name);
  std::lock_guard<std::mutex> lock(mutex);
  if (!guards) install_handler();
  guard->next = guards;
  guards = guard;
  return reinterpret_cast<void*>(memory);
}

void tf_guard_protect(void* memory) {
  std::lock_guard<std::mutex> lock(tf::mutex);
  const tf::Guard* guard = tf::find(reinterpret_cast<uintptr_t>(memory));
  mprotect(reinterpret_cast<void*>(guard->body), guard->body_bytes, PROT_READ);
}

int tf_guard_damage(void* memory, long long* offset) {
  std::lock_guard<std::mutex> lock(tf::mutex);
  const tf::Guard* guard = tf::find(reinterpret_cast<uintptr_t>(memory));
  for (uintptr_t at = guard->body; at < guard->body + guard->body_bytes; ++at) {
    if (at == guard->memory) at += guard->bytes;
    if (at == guard->body + guard->body_bytes) break;
    if (*reinterpret_cast<const unsigned char*>(at) == tf::kFill) continue;
    *offset = static_cast<long long>(at - guard->memory);
    return 1;
  }
  return 0;
}

void tf_guard_free(void* memory) {
  using namespace tf;
  std::lock_guard<std::mutex> lock(mutex);
  Guard* guard = find(reinterpret_cast<uintptr_t>(memory));
  Guard** link = &guards;
  while (*link != guard) link = &(*link)->next;
  *link = guard->next;
  if (!guards) sigaction(SIGSEGV, &previous, nullptr);
  munmap(reinterpret_cast<void*>(guard->map), guard->map_bytes);
  delete guard;
}
