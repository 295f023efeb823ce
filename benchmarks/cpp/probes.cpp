// SPDX-License-Identifier: Apache-2.0
/// How fast this machine moves memory: many ways to read and write given amounts, of which the fastest counts.
///
/// A library of one C function, built and called by `benchmarks/probes.py`. The ways differ in what decides on
/// processors: how many places are read at once, how far ahead lines are asked for, and whether stores go through the
/// caches (after reading the line, or past them, or as the processor's own string copy does it).
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace {

/// A cache line.
using Line = float __attribute__((vector_size(64)));
constexpr uint64_t kLine = sizeof(Line);
constexpr uint64_t kHugePage = 2 << 20;
/// Where more is read than written, or the other way round, both take turns in blocks of about so many bytes.
constexpr uint64_t kBlock = 32 << 10;
/// Runs of a way in a row, of which the fastest counts: the first ones find caches as another way left them.
constexpr int kRuns = 5;
/// How many of the fastest ways are tried again and again.
constexpr size_t kFinalists = 4;

void relax() {
#ifdef __x86_64__
  __builtin_ia32_pause();
#endif
}

enum class Store { kPlain, kPastCaches, kString };

template <Store kStore>
void store(char* to, Line value) {
#if defined(__AVX512F__)
  if (kStore == Store::kPastCaches)
    return _mm512_stream_ps(reinterpret_cast<float*>(to), reinterpret_cast<__m512>(value));
#elif defined(__SSE2__)
  if (kStore == Store::kPastCaches) {
    __m128 quarters[4];
    std::memcpy(quarters, &value, sizeof(quarters));
    for (int i = 0; i < 4; ++i) _mm_stream_ps(reinterpret_cast<float*>(to) + 4 * i, quarters[i]);
    return;
  }
#endif
  *reinterpret_cast<Line*>(to) = value;
}

/// Waits for stores past the caches, which other threads might miss.
template <Store kStore>
void finish() {
#ifdef __SSE2__
  if (kStore == Store::kPastCaches) _mm_sfence();
#endif
}

using Copy = void (*)(char* to, const char* from, uint64_t bytes);
using Read = void (*)(const char* from, uint64_t bytes);
using Fill = void (*)(char* to, uint64_t bytes);

/// Copies whole lines, `kStreams` places at once, each asked for `kAhead` bytes before.
template <int kStreams, int kAhead, Store kStore>
void copy(char* to, const char* from, uint64_t bytes) {
#ifdef __x86_64__
  if (kStore == Store::kString) {
    asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes)::"memory");
    return;
  }
#endif
  const uint64_t part = bytes / kLine / kStreams * kLine;
  for (uint64_t i = 0; i < part; i += kLine) {
    for (int stream = 0; stream < kStreams; ++stream) {
      const uint64_t at = stream * part + i;
      if (kAhead != 0) __builtin_prefetch(from + at + kAhead);
      store<kStore>(to + at, *reinterpret_cast<const Line*>(from + at));
    }
  }
  for (uint64_t i = kStreams * part; i < bytes; i += kLine) {
    store<kStore>(to + i, *reinterpret_cast<const Line*>(from + i));
  }
  finish<kStore>();
}

/// Adds whole lines up, `kStreams` places at once.
template <int kStreams, int kAhead>
void read(const char* from, uint64_t bytes) {
  const uint64_t part = bytes / (2 * kLine) / kStreams * 2 * kLine;
  Line sums[kStreams][2] = {};
  for (uint64_t i = 0; i < part; i += 2 * kLine) {
    for (int stream = 0; stream < kStreams; ++stream) {
      const char* at = from + stream * part + i;
      if (kAhead != 0) {
        __builtin_prefetch(at + kAhead);
        __builtin_prefetch(at + kAhead + kLine);
      }
      sums[stream][0] += *reinterpret_cast<const Line*>(at);
      sums[stream][1] += *reinterpret_cast<const Line*>(at + kLine);
    }
  }
  for (uint64_t i = kStreams * part; i < bytes; i += kLine) sums[0][0] += *reinterpret_cast<const Line*>(from + i);
  for (auto& sum : sums) asm volatile("" ::"m"(sum));  // somebody might want them
}

template <Store kStore>
void fill(char* to, uint64_t bytes) {
  for (uint64_t i = 0; i < bytes; i += kLine) store<kStore>(to + i, Line{} + 1);
  finish<kStore>();
}

struct CopyWay {
  const char* name;
  Copy copy;
  Fill fill;
};
struct ReadWay {
  const char* name;
  Read read;
};

constexpr CopyWay kCopies[] = {
    {"plain stores", copy<1, 0, Store::kPlain>, fill<Store::kPlain>},
    {"plain stores, 512 bytes ahead", copy<1, 512, Store::kPlain>, fill<Store::kPlain>},
    {"plain stores, 2048 bytes ahead", copy<1, 2048, Store::kPlain>, fill<Store::kPlain>},
    {"plain stores, 2 places", copy<2, 0, Store::kPlain>, fill<Store::kPlain>},
    {"plain stores, 4 places", copy<4, 0, Store::kPlain>, fill<Store::kPlain>},
    {"stores past the caches", copy<1, 0, Store::kPastCaches>, fill<Store::kPastCaches>},
    {"stores past the caches, 1024 bytes ahead", copy<1, 1024, Store::kPastCaches>, fill<Store::kPastCaches>},
    {"stores past the caches, 2048 bytes ahead", copy<1, 2048, Store::kPastCaches>, fill<Store::kPastCaches>},
    {"stores past the caches, 2 places", copy<2, 0, Store::kPastCaches>, fill<Store::kPastCaches>},
    {"stores past the caches, 4 places", copy<4, 0, Store::kPastCaches>, fill<Store::kPastCaches>},
    {"string copy", copy<1, 0, Store::kString>, fill<Store::kPlain>},
};
constexpr ReadWay kReads[] = {
    {"1 place", read<1, 0>},
    {"1 place, 1024 bytes ahead", read<1, 1024>},
    {"1 place, 4096 bytes ahead", read<1, 4096>},
    {"2 places", read<2, 0>},
    {"4 places", read<4, 0>},
    {"4 places, 1024 bytes ahead", read<4, 1024>},
    {"8 places", read<8, 0>},
};
constexpr uint64_t kRowsAhead[] = {0, 1, 2, 4, 8};

/// Memory in huge pages, where the system gives them.
struct Free {
  void operator()(char* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<char, Free>;

Memory allocate(uint64_t bytes) {
  const uint64_t rounded = (bytes + 2 * kHugePage - 1) / kHugePage * kHugePage;
  Memory memory(static_cast<char*>(std::aligned_alloc(kHugePage, rounded)));
  if (memory == nullptr) return memory;
  madvise(memory.get(), rounded, MADV_HUGEPAGE);
  // Not zeros, which some systems and processors treat apart.
  for (uint64_t i = 0; i < rounded / sizeof(uint32_t); ++i) {
    reinterpret_cast<uint32_t*>(memory.get())[i] = 0x3f800000u | (static_cast<uint32_t>(i) * 2654435761u >> 9);
  }
  return memory;
}

/// What is moved: see `outboard_probe`.
struct Traffic {
  uint64_t reads, writes;
  bool in_place;
  uint64_t row, table;
};

/// One way to do it.
struct Way {
  const CopyWay* copy;
  const ReadWay* read;
  uint64_t rows_ahead;
  double best = 1e30;
};

/// The ways that differ for such traffic.
std::vector<Way> ways_for(const Traffic& traffic) {
  std::vector<Way> ways;
  const bool copies = traffic.writes != 0, reads = traffic.row == 0 && traffic.reads > traffic.writes;
  for (const CopyWay& copy : kCopies) {
    if (!copies && &copy != kCopies) break;
    if (traffic.row != 0) {
      for (const uint64_t ahead : kRowsAhead) ways.push_back({&copy, kReads, ahead});
      continue;
    }
    for (const ReadWay& read : kReads) {
      if (reads || &read == kReads) ways.push_back({&copy, &read, 0});
    }
  }
  return ways;
}

class Probe {
 public:
  Probe(const Traffic& traffic, unsigned threads) : traffic_(traffic), threads_(threads), ways_(ways_for(traffic)) {
    if (traffic.row != 0) choose_rows();
    if (traffic.row != 0 || !traffic.in_place || traffic.reads > traffic.writes) {
      from_ = allocate(traffic.row != 0 ? traffic.table : traffic.reads);
    }
    to_ = allocate(traffic.writes);
  }

  /// Tries ways for so many seconds, in turns, the fastest ones more often.
  void search(double seconds) {
    end_.store(false);
    start_.store(0);
    std::vector<std::thread> others;
    for (unsigned thread = 1; thread < threads_; ++thread) others.emplace_back([this, thread] { serve(thread); });
    const auto begin = std::chrono::steady_clock::now();
    do {
      attempt(ways_[next_++ % ways_.size()]);
      for (Way* way : finalists()) attempt(*way);
    } while (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < seconds);
    end_.store(true);
    for (auto& thread : others) thread.join();
  }

  const Way& best() {
    return *std::min_element(ways_.begin(), ways_.end(),
                             [](const Way& one, const Way& other) { return one.best < other.best; });
  }
  const Traffic& traffic() const { return traffic_; }

 private:
  void choose_rows() {
    uint64_t state = 88172645463325252u;  // Marsaglia's xorshift: the same rows in each run
    for (uint64_t i = 0; i < traffic_.writes / traffic_.row; ++i) {
      state ^= state << 13, state ^= state >> 7, state ^= state << 17;
      rows_.push_back(state % (traffic_.table / traffic_.row));
    }
  }

  std::vector<Way*> finalists() {
    std::vector<Way*> ways;
    for (Way& way : ways_) ways.push_back(&way);
    std::sort(ways.begin(), ways.end(), [](const Way* one, const Way* other) { return one->best < other->best; });
    ways.resize(std::min(ways.size(), kFinalists));
    return ways;
  }

  void attempt(Way& way) {
    for (int run = 0; run < kRuns; ++run) way.best = std::min(way.best, run_once(way));
  }

  /// Seconds of one run on all threads, which look for work all the time.
  double run_once(const Way& way) {
    way_ = &way;
    const auto begin = std::chrono::steady_clock::now();
    done_.store(0, std::memory_order_relaxed);
    start_.fetch_add(1, std::memory_order_release);
    work(0);
    while (done_.load(std::memory_order_acquire) != threads_ - 1) relax();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  void serve(unsigned thread) {
    for (uint64_t last = 0;;) {
      while (start_.load(std::memory_order_acquire) == last) {
        if (end_.load(std::memory_order_relaxed)) return;
        relax();
      }
      ++last;
      work(thread);
      done_.fetch_add(1, std::memory_order_release);
    }
  }

  /// Where the part of a thread begins, in whole lines.
  uint64_t begin_of(unsigned thread, uint64_t bytes) const { return bytes / kLine * thread / threads_ * kLine; }

  void work(unsigned thread) const {
    if (traffic_.row != 0) return gather(thread);
    const uint64_t copied = std::min(traffic_.reads, traffic_.writes);
    const uint64_t begin = begin_of(thread, copied), bytes = begin_of(thread + 1, copied) - begin;
    const char* from = traffic_.in_place ? to_.get() : from_.get();
    if (traffic_.reads == traffic_.writes) return way_->copy->copy(to_.get() + begin, from + begin, bytes);
    // What is only read or only written lies behind what is copied; in place, all of the source is read only.
    const uint64_t more = std::max(traffic_.reads, traffic_.writes) - copied;
    const uint64_t more_begin = begin_of(thread, more), more_bytes = begin_of(thread + 1, more) - more_begin;
    char* written = to_.get() + copied + more_begin;
    const char* read = from_.get() + (traffic_.in_place ? 0 : copied) + more_begin;
    const uint64_t blocks = copied == 0 ? 1 : std::max<uint64_t>(1, (bytes + more_bytes) / kBlock);
    const auto place = [blocks](uint64_t block, uint64_t size) { return size / kLine * block / blocks * kLine; };
    for (uint64_t block = 0; block < blocks; ++block) {
      const uint64_t at = begin + place(block, bytes), end = begin + place(block + 1, bytes);
      way_->copy->copy(to_.get() + at, from + at, end - at);
      const uint64_t more_at = place(block, more_bytes), count = place(block + 1, more_bytes) - more_at;
      if (traffic_.reads > traffic_.writes) {
        way_->read->read(read + more_at, count);
      } else {
        way_->copy->fill(written + more_at, count);
      }
    }
  }

  void gather(unsigned thread) const {
    const uint64_t row = traffic_.row, last = rows_.size() - 1;
    const uint64_t begin = rows_.size() * thread / threads_, end = rows_.size() * (thread + 1) / threads_;
    for (uint64_t i = begin; i < end; ++i) {
      const char* next = from_.get() + rows_[std::min(i + way_->rows_ahead, last)] * row;
      for (uint64_t at = 0; at < row && way_->rows_ahead != 0; at += kLine) __builtin_prefetch(next + at);
      way_->copy->copy(to_.get() + i * row, from_.get() + rows_[i] * row, row);
    }
  }

  const Traffic traffic_;
  const unsigned threads_;
  std::vector<Way> ways_;
  size_t next_ = 0;  // whose turn it is
  std::vector<uint64_t> rows_;
  Memory from_, to_;
  const Way* way_ = nullptr;
  std::atomic<bool> end_{false};
  alignas(64) std::atomic<uint64_t> start_{0};
  alignas(64) std::atomic<uint64_t> done_{0};
};

}  // namespace

extern "C" {

/// A search for the fastest way to read `reads` and write `writes` bytes, multiples of 64, on so many threads. The same
/// memory is used in each run. `in_place`: what is written lies where the first reads are. `row`, if not 0: what is
/// read are rows of so many bytes, a multiple of 64, anywhere in a table of `table` bytes; then as much is written as
/// read.
void* outboard_probe_new(uint64_t reads, uint64_t writes, int in_place, uint64_t row, uint64_t table,
                         unsigned threads) {
  return new Probe({reads, writes, in_place != 0, row, table}, threads);
}

/// Goes on searching for so many seconds. Returns the seconds of the fastest run so far.
double outboard_probe_search(void* probe, double seconds) {
  static_cast<Probe*>(probe)->search(seconds);
  return static_cast<Probe*>(probe)->best().best;
}

/// Describes the fastest way so far.
void outboard_probe_describe(void* probe, char* text, size_t size) {
  const Traffic& traffic = static_cast<Probe*>(probe)->traffic();
  const Way& best = static_cast<Probe*>(probe)->best();
  const bool writes = traffic.writes != 0, reads = traffic.row == 0 && traffic.reads > traffic.writes;
  std::snprintf(text, size, "%s%s%s%s", writes ? best.copy->name : "", writes && reads ? "; reads " : "",
                reads ? best.read->name : "", best.rows_ahead != 0 ? ", rows ahead" : "");
}

void outboard_probe_delete(void* probe) { delete static_cast<Probe*>(probe); }
}
