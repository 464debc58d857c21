// Collectives of the threads of a warp, a block, a cluster and the grid.
#include <string.h>

#include "text.h"
#include "worker.h"

namespace tf {

static bool same_place(tf_site a, tf_site b) {
  return a.line == b.line && (a.file == b.file || strcmp(a.file, b.file) == 0);
}

// Marks the running thread as waiting at `site`; it continues to run until it yields.
Fiber& Worker::park(State state, tf_site site) {
  Fiber& fiber = *current_;
  fiber.state = state;
  fiber.site = site;
  fiber.warp->ready &= ~(1u << fiber.lane());
  return fiber;
}

void Worker::wake(Block& block) {
  for (Warp& warp : block.warps) warp.ready = warp.exists;
}

// Runs other threads until the parked thread is woken.
void Worker::wait(char* meeting) {
  Fiber& fiber = *current_;
  yield();
  fiber.state = State::running;
  Meeting::depart(meeting);
}

// ---- the block

// Checks that the running thread is at the same `site` as the `first` of the threads in the
// barrier.
void Worker::check_same_barrier(unsigned waiting, tf_site& first, tf_site site) {
  if (waiting == 0) {
    first = site;
  } else if (!same_place(first, site)) {
    Text text;
    text.add("divergent barriers: ").thread(current_->self).add(" reached the one at ").site(site);
    text.add(" while %u threads wait in the one at ", waiting).site(first);
    abandon(text.c_str());
  }
}

// Parks the running thread in the block's barrier; true for the last one, which must wake the
// others.
bool Worker::arrive_in_block(tf_site site) {
  Block& block = *park(State::in_block, site).block;
  check_same_barrier(block.in_block, block.barrier, site);
  if (++block.in_block < block.threads) return false;
  block.in_block = 0;
  return true;
}

void Worker::sync_block(tf_site site) {
  Block& block = *current_->block;
  char* const meeting = block.meeting.arrive();
  if (arrive_in_block(site)) {
    block.meeting.complete();
    wake(block);
  }
  wait(meeting);
}

// Combines the values of `count` parked threads; called by the last to arrive. Values stay with
// their threads until then, because warps may be at different collectives with values of different
// sizes.
static void combine_values(Block& block, unsigned first, unsigned count, int bytes,
                           tf_combine combine, unsigned char* room) {
  for (unsigned i = 0; i < count; ++i) {
    memcpy(room + i * size_t(bytes), block.fibers[first + i]->value, bytes);
  }
  combine(room, count);
  for (unsigned i = 0; i < count; ++i) {
    memcpy(block.fibers[first + i]->value, room + i * size_t(bytes), bytes);
  }
}

void Worker::combine_block(void* value, int bytes, tf_combine combine, tf_site site) {
  Fiber& fiber = *current_;
  Block& block = *fiber.block;
  char* const meeting = block.meeting.arrive();
  fiber.value = value;
  if (arrive_in_block(site)) {
    Meeting::depart(meeting);
    combine_values(block, 0, block.threads, bytes, combine, block.values.data());
    block.meeting.complete();
    wake(block);
  }
  wait(meeting);
}

// ---- the cluster

void Worker::sync_cluster(tf_site site) {
  Cluster& cluster = *current_->block->cluster;
  char* const meeting = cluster.meeting.arrive();
  Block& block = *park(State::in_cluster, site).block;
  check_same_barrier(cluster.waiting, cluster.barrier, site);
  if (++cluster.waiting == block.threads * cluster.blocks.size()) {
    cluster.waiting = 0;
    cluster.meeting.complete();
    for (Block* each : cluster.blocks) wake(*each);
  }
  wait(meeting);
}

// ---- the grid

void Worker::sync_grid(tf_site site) {
  if (!launch_->has(TF_RESIDENT)) tf_fail("grid barrier in a launch that is not cooperative", site);
  Fiber& fiber = park(State::in_grid, site);
  ++fiber.block->in_grid;
  wait(grid_meeting_.arrive());
}

// ---- the warp

// Parks the running lane with its operands; true if all lanes of its mask have arrived.
bool Worker::arrive_in_warp(const WarpCall& call) {
  Fiber& fiber = park(State::in_warp, call.site);
  Warp& warp = *fiber.warp;
  const unsigned bit = 1u << fiber.lane();
  if (!(call.mask & bit)) tf_fail("lane outside the mask of its own warp collective", call.site);
  warp.calls[fiber.lane()] = call;
  warp.waiting |= bit;
  const unsigned mask = call.mask & warp.exists;
  if ((warp.waiting & mask) != mask) return false;
  check_same_call(fiber, mask);
  warp.waiting &= ~mask;
  return true;
}

void Worker::check_same_call(const Fiber& last, unsigned mask) {
  const WarpCall& mine = last.warp->calls[last.lane()];
  for (unsigned rest = mask; rest; rest &= rest - 1) {
    const unsigned lane = __builtin_ctz(rest);
    const WarpCall& other = last.warp->calls[lane];
    const bool same_call = other.op == mine.op && other.mask == mine.mask;
    if (same_call && same_place(other.site, mine.site)) continue;
    Text text;
    text.add("divergent warp collectives: ").thread(last.self);
    text.add(" (lane %u) is at ", last.lane()).site(mine.site);
    text.add(" with mask 0x%08x, lane %u at ", mine.mask, lane).site(other.site);
    text.add(" with mask 0x%08x", other.mask);
    abandon(text.c_str());
  }
}

// The lane whose value `lane` receives; itself if CUDA leaves the value unchanged.
static unsigned source_lane(const WarpCall& call, unsigned lane) {
  const int width = call.width, self = static_cast<int>(lane), start = self & ~(width - 1);
  int source = self;
  switch (call.op) {
    case TF_SHFL: return start + (call.lane & (width - 1));
    case TF_SHFL_XOR: source = self ^ call.lane; break;
    case TF_SHFL_UP: source = self - call.lane; break;
    default: source = self + call.lane; break;
  }
  // xor may reach into lower segments, as on the GPU, but never beyond its own.
  const bool below = call.op == TF_SHFL_UP && source < start;
  return below || source >= start + width ? lane : source;
}

// Replaces the operands of the lanes of `mask` by their results.
static void exchange(Warp& warp, unsigned mask, tf_warp_op op) {
  if (op == TF_SYNC_WARP) return;
  unsigned long long brought[32], votes = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    // Values of lanes outside the mask are undefined: all bits set, which is a NaN.
    const bool there = mask >> lane & 1;
    brought[lane] = there ? warp.calls[lane].value : ~0ull;
    votes |= there && brought[lane] ? 1ull << lane : 0;
  }
  for (unsigned rest = mask; rest; rest &= rest - 1) {
    const unsigned lane = __builtin_ctz(rest);
    WarpCall& call = warp.calls[lane];
    call.value = op == TF_BALLOT ? votes : brought[source_lane(call, lane)];
  }
}

unsigned long long Worker::warp(const WarpCall& call) {
  Fiber& fiber = *current_;
  Warp& warp = *fiber.warp;
  char* const meeting = warp.meeting.arrive();
  if (arrive_in_warp(call)) {
    const unsigned mask = call.mask & warp.exists;
    exchange(warp, mask, call.op);
    warp.meeting.complete();
    warp.ready |= mask;
  }
  wait(meeting);
  return warp.calls[fiber.lane()].value;
}

void Worker::combine_warp(void* value, int bytes, tf_combine combine, tf_site site) {
  Fiber& fiber = *current_;
  Warp& warp = *fiber.warp;
  char* const meeting = warp.meeting.arrive();
  fiber.value = value;
  if (arrive_in_warp({0, site, TF_SYNC_WARP, 0, 32, ~0u})) {
    alignas(16) unsigned char room[32 * TF_MAX_VALUE];
    const unsigned lanes = __builtin_popcount(warp.exists);
    Meeting::depart(meeting);
    combine_values(*fiber.block, fiber.linear - fiber.lane(), lanes, bytes, combine, room);
    warp.meeting.complete();
    warp.ready |= warp.exists;
  }
  wait(meeting);
}

}  // namespace tf
