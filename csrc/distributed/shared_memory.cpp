// SPDX-License-Identifier: Apache-2.0
#include "distributed/shared_memory.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <type_traits>

#include "runtime/base/interruption.h"

namespace outboard::distributed {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kPage = 4096;
constexpr size_t kTextBytes = 192;
/// Up to so many bytes every rank combines everything: one step instead of two.
constexpr size_t kWhole = size_t{16} << 10;
/// Bytes that stay in the cache while those of further ranks are combined with them.
constexpr size_t kBlock = size_t{16} << 10;
/// How long a rank spins where each has a core.
constexpr auto kSpin = std::chrono::microseconds(40);
constexpr int kSpinsBetweenLooks = 64;

enum State : uint32_t { kTakesPart, kGaveUp, kAborted, kLeft };

size_t rounded(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Sleeps while the word has this value, at most for so long.
void futex_wait(std::atomic<uint32_t>& word, uint32_t value, std::chrono::milliseconds longest) {
  static_assert(sizeof(word) == sizeof(uint32_t) && std::atomic<uint32_t>::is_always_lock_free);
  const timespec time{longest.count() / 1000, longest.count() % 1000 * 1000000};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, value, &time, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

size_t bytes_of(const SharedMemoryPlace& place, size_t control) {
  const size_t half = rounded(kTextBytes + place.capacity, kPage);
  return kPage + rounded(control * place.ranks, kPage) + 2 * half * place.ranks;
}

void* mapped(int file, size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

}  // namespace

std::string unlike_calls(const std::vector<std::string>& terms) {
  std::string all = "Ranks called different collectives:";
  for (size_t rank = 0; rank < terms.size(); ++rank) all += "\n  rank " + std::to_string(rank) + ": " + terms[rank];
  return all + "\nTORCH_DISTRIBUTED_DEBUG=DETAIL shows shapes, too";
}

std::string unlike_bytes(const std::vector<std::vector<uint64_t>>& sent,
                         const std::vector<std::vector<uint64_t>>& received) {
  for (size_t from = 0; from < sent.size(); ++from) {
    for (size_t to = 0; to < sent.size(); ++to) {
      if (sent[from][to] == received[to][from]) continue;
      return "rank " + std::to_string(from) + " sends " + std::to_string(sent[from][to]) + " bytes to rank " +
             std::to_string(to) + ", which expects " + std::to_string(received[to][from]);
    }
  }
  return {};
}

/// What a rank tells the others, on cache lines of its own.
struct alignas(kLine) SharedMemory::Control {
  std::atomic<uint32_t> steps;    ///< how many it has written
  std::atomic<uint32_t> waiters;  ///< who sleep until that changes
  std::atomic<uint32_t> state;
  ProcessIdentity process;
};

struct SharedMemory::Half {
  char text[kTextBytes];  ///< what the rank asks for, in the first step of a collective
  char data[];
};

std::unique_ptr<SharedMemory> SharedMemory::create(int ranks, size_t capacity) {
  SharedMemoryPlace place{};
  place.owner = own_identity();
  place.ranks = ranks;
  place.capacity = rounded(capacity, kLine);
  const size_t bytes = bytes_of(place, sizeof(Control));
  const bool known = are_near(place.owner, place.owner);
  if (ranks < 2 || !known || getrandom(&place.nonce, sizeof(place.nonce), 0) != sizeof(place.nonce)) return nullptr;
  place.nonce |= 1;
  place.file = memfd_create("outboard-group", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (place.file < 0) return nullptr;
  void* memory = nullptr;
  // Sealed, so that no other process can make it smaller under those that use it.
  const bool made = fchmod(place.file, 0600) == 0 && ftruncate(place.file, static_cast<off_t>(bytes)) == 0 &&
                    fcntl(place.file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0;
  if (made) memory = mapped(place.file, bytes);
  if (memory == nullptr) {
    close(place.file);
    return nullptr;
  }
  std::memcpy(memory, &place.nonce, sizeof(place.nonce));
  return std::unique_ptr<SharedMemory>(new SharedMemory(place, memory, 0, place.file));
}

std::unique_ptr<SharedMemory> SharedMemory::attach(const SharedMemoryPlace& place, int rank) {
  if (place.nonce == 0 || !are_near(own_identity(), place.owner)) return nullptr;
  const std::string path = "/proc/" + std::to_string(place.owner.process) + "/fd/" + std::to_string(place.file);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return nullptr;
  const size_t bytes = bytes_of(place, sizeof(Control));
  struct stat status{};
  const bool ours = fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid() &&
                    static_cast<size_t>(status.st_size) == bytes;
  void* const memory = ours ? mapped(file, bytes) : nullptr;
  close(file);
  if (memory == nullptr) return nullptr;
  if (std::memcmp(memory, &place.nonce, sizeof(place.nonce)) != 0) {
    munmap(memory, bytes);
    return nullptr;
  }
  return std::unique_ptr<SharedMemory>(new SharedMemory(place, memory, rank, -1));
}

SharedMemory::SharedMemory(const SharedMemoryPlace& place, void* memory, int rank, int file)
    : place_(place),
      memory_(static_cast<char*>(memory)),
      rank_(rank),
      ranks_(place.ranks),
      spins_(static_cast<int>(std::thread::hardware_concurrency()) >= place.ranks),
      file_(file) {
  control(rank_).process = own_identity();
}

SharedMemory::~SharedMemory() {
  give_up(kLeft);
  seal();
  munmap(memory_, bytes_of(place_, sizeof(Control)));
}

void SharedMemory::seal() {
  if (file_ >= 0) close(file_);
  file_ = -1;
}

SharedMemory::Control& SharedMemory::control(int rank) const {
  return reinterpret_cast<Control*>(memory_ + kPage)[rank];
}

SharedMemory::Half& SharedMemory::half(int rank, uint32_t step) const {
  char* const first = memory_ + kPage + rounded(sizeof(Control) * ranks_, kPage);
  const size_t bytes = rounded(kTextBytes + place_.capacity, kPage);
  return *reinterpret_cast<Half*>(first + (static_cast<size_t>(rank) * 2 + step % 2) * bytes);
}

char* SharedMemory::writable() const { return half(rank_, step_ + 1).data; }

const char* SharedMemory::readable(int rank) const { return half(rank, step_).data; }

void SharedMemory::give_up(uint32_t state) {
  Control& own = control(rank_);
  uint32_t expected = kTakesPart;
  own.state.compare_exchange_strong(expected, state);
  futex_wake(own.steps);
}

void SharedMemory::abort() {
  aborted_.store(true);
  give_up(kAborted);
}

void SharedMemory::collective(const Terms& terms, const std::function<void()>& body) {
  if (!failure_.empty()) throw TransportError("The group is of no use any more: " + failure_);
  if (aborted_.load()) throw TransportError("aborted");
  terms_ = &terms;
  deadline_ = Clock::now() + terms.timeout;
  try {
    body();
  } catch (const MismatchError&) {
    throw;
  } catch (const TransportError& error) {
    failure_ = error.what();
    give_up(kGaveUp);
    throw;
  } catch (...) {
    failure_ = "a wait for other ranks was interrupted";
    give_up(kGaveUp);
    throw;
  }
}

void SharedMemory::first_step() {
  char* const text = half(rank_, step_ + 1).text;
  text[terms_->text.copy(text, kTextBytes - 1)] = 0;
  step();
  require_agreement();
}

void SharedMemory::require_agreement() const {
  bool same = true;
  for (int rank = 1; rank < ranks_ && same; ++rank) {
    same = std::strncmp(half(0, step_).text, half(rank, step_).text, kTextBytes) == 0;
  }
  if (same) return;
  std::vector<std::string> all;
  for (int rank = 0; rank < ranks_; ++rank) {
    const char* const text = half(rank, step_).text;
    all.emplace_back(text, strnlen(text, kTextBytes));
  }
  throw MismatchError(unlike_calls(all));
}

void SharedMemory::step() {
  ++step_;
  Control& own = control(rank_);
  // Sequentially consistent with what `await` does: either this sees the waiter, or that sees the step.
  own.steps.store(step_);
  if (own.waiters.load() != 0) futex_wake(own.steps);
  for (int rank = 0; rank < ranks_; ++rank) {
    if (rank != rank_) await(rank);
  }
}

void SharedMemory::await(int rank) {
  Control& other = control(rank);
  const auto come = [&] { return static_cast<int32_t>(other.steps.load(std::memory_order_acquire) - step_) >= 0; };
  if (come()) return;
  const Clock::time_point begin = Clock::now();
  while (spins_ && Clock::now() - begin < kSpin) {
    for (int i = 0; i < kSpinsBetweenLooks; ++i) {
      if (come()) return;
      pause();
    }
  }
  while (true) {
    other.waiters.fetch_add(1);
    const uint32_t steps = other.steps.load();
    const bool waits = static_cast<int32_t>(steps - step_) < 0 && other.state.load() == kTakesPart;
    if (waits) futex_wait(other.steps, steps, kInterruptionInterval);
    other.waiters.fetch_sub(1);
    if (come()) return;
    check_interruption();
    require_alive(rank);
  }
}

void SharedMemory::require_alive(int rank) const {
  const Control& other = control(rank);
  const auto fail = [&](const char* what) {
    // It may have come first, and left then.
    if (static_cast<int32_t>(other.steps.load() - step_) >= 0) return;
    throw TransportError("rank " + std::to_string(rank) + " of the group " + what);
  };
  if (aborted_.load()) throw TransportError("aborted");
  switch (other.state.load()) {
    case kGaveUp:
      return fail("gave up a collective");
    case kAborted:
      return fail("aborted the group");
    case kLeft:
      return fail("has left: connection closed");
    default:
      break;
  }
  if (has_ended(other.process)) return fail("has ended: connection closed");
  if (Clock::now() < deadline_) return;
  fail(("did not come. Timed out after " + std::to_string(terms_->timeout.count()) + " ms").c_str());
}

void SharedMemory::barrier(const Terms& terms) {
  collective(terms, [&] { first_step(); });
}

void SharedMemory::broadcast(const Terms& terms, void* data, size_t bytes, int root) {
  collective(terms, [&] {
    size_t begin = 0;
    do {
      const size_t count = std::min(bytes - begin, place_.capacity);
      char* const here = static_cast<char*>(data) + begin;
      if (rank_ == root && count != 0) std::memcpy(writable(), here, count);
      begin == 0 ? first_step() : step();
      if (rank_ != root && count != 0) std::memcpy(here, readable(root), count);
      begin += count;
    } while (begin < bytes);
  });
}

void SharedMemory::all_reduce(const Terms& terms, void* data, size_t count, const Combination& combination) {
  reduce_for(terms, static_cast<char*>(data), count, combination, /*wanted=*/true);
}

void SharedMemory::reduce(const Terms& terms, void* data, size_t count, const Combination& combination, int root) {
  reduce_for(terms, static_cast<char*>(data), count, combination, rank_ == root);
}

void SharedMemory::reduce_for(const Terms& terms, char* data, size_t count, const Combination& combination,
                              bool wanted) {
  collective(terms, [&] {
    const size_t item = combination.item;
    if (count * item <= std::min(kWhole, place_.capacity)) return reduce_whole(data, count, combination, wanted);
    const size_t most = place_.capacity / item;
    for (size_t begin = 0; begin < count; begin += most) {
      reduce_chunk(data + begin * item, std::min(count - begin, most), combination, wanted, begin == 0);
    }
  });
}

void SharedMemory::reduce_whole(char* data, size_t count, const Combination& combination, bool wanted) {
  if (count != 0) std::memcpy(writable(), data, count * combination.item);
  first_step();
  if (!wanted || count == 0) return;
  combination.apply(readable(0), readable(1), data, count);
  for (int rank = 2; rank < ranks_; ++rank) combination.apply(data, readable(rank), data, count);
}

/// Each rank combines a part, which the others have written, and all take the parts together.
void SharedMemory::reduce_chunk(char* data, size_t count, const Combination& combination, bool wanted, bool first) {
  const size_t item = combination.item;
  const size_t part = rounded((count + ranks_ - 1) / ranks_, kLine);
  const auto begin_of_part = [&](int rank) { return std::min(count, part * rank); };
  const auto elements = [&](int rank) { return begin_of_part(rank + 1) - begin_of_part(rank); };
  for (int rank = 0; rank < ranks_; ++rank) {
    const size_t offset = begin_of_part(rank) * item;
    if (rank != rank_) std::memcpy(writable() + offset, data + offset, elements(rank) * item);
  }
  first ? first_step() : step();
  const size_t end = begin_of_part(rank_ + 1);
  const size_t block = kBlock / item;
  const auto input = [&](int rank, size_t at) { return (rank == rank_ ? data : readable(rank)) + at * item; };
  for (size_t at = begin_of_part(rank_); at < end; at += block) {
    const size_t some = std::min(block, end - at);
    char* const result = writable() + at * item;
    combination.apply(input(0, at), input(1, at), result, some);
    for (int rank = 2; rank < ranks_; ++rank) combination.apply(result, input(rank, at), result, some);
  }
  step();
  for (int rank = 0; rank < ranks_ && wanted; ++rank) {
    const size_t offset = begin_of_part(rank) * item;
    std::memcpy(data + offset, readable(rank) + offset, elements(rank) * item);
  }
}

void SharedMemory::all_gather(const Terms& terms, const void* input, const std::vector<void*>& outputs, size_t bytes) {
  collective(terms, [&] {
    size_t begin = 0;
    do {
      const size_t count = std::min(bytes - begin, place_.capacity);
      if (count != 0) std::memcpy(writable(), static_cast<const char*>(input) + begin, count);
      begin == 0 ? first_step() : step();
      for (int rank = 0; rank < ranks_ && count != 0; ++rank) {
        std::memcpy(static_cast<char*>(outputs[rank]) + begin, readable(rank), count);
      }
      begin += count;
    } while (begin < bytes);
  });
}

void SharedMemory::all_to_all(const Terms& terms, const void* input, const std::vector<uint64_t>& sent, void* output,
                              const std::vector<uint64_t>& received) {
  const auto ranks = static_cast<size_t>(ranks_);
  if (2 * ranks * sizeof(uint64_t) > place_.capacity) throw TransportError("too many ranks for this memory");
  collective(terms, [&] {
    auto* const table = reinterpret_cast<uint64_t*>(writable());
    std::copy(sent.begin(), sent.end(), table);
    std::copy(received.begin(), received.end(), table + ranks);
    first_step();
    uint64_t largest = 0;
    std::vector<std::vector<uint64_t>> leaving, arriving;
    for (int rank = 0; rank < ranks_; ++rank) {
      const auto* const row = reinterpret_cast<const uint64_t*>(readable(rank));
      leaving.emplace_back(row, row + ranks);
      arriving.emplace_back(row + ranks, row + 2 * ranks);
      largest = std::max(largest, *std::max_element(row, row + ranks));
    }
    if (const std::string text = unlike_bytes(leaving, arriving); !text.empty()) throw MismatchError(text);
    exchange(static_cast<const char*>(input), sent, static_cast<char*>(output), received, largest);
  });
}

void SharedMemory::exchange(const char* input, const std::vector<uint64_t>& sent, char* output,
                            const std::vector<uint64_t>& received, uint64_t largest) {
  const size_t share = place_.capacity / ranks_ / sizeof(uint64_t) * sizeof(uint64_t);
  const auto piece = [&](uint64_t total, uint64_t begin) {
    return total <= begin ? 0 : std::min(total - begin, share);
  };
  for (uint64_t begin = 0; begin < largest; begin += share) {
    const char* from = input;
    for (int rank = 0; rank < ranks_; from += sent[rank++]) {
      if (const size_t bytes = piece(sent[rank], begin)) std::memcpy(writable() + rank * share, from + begin, bytes);
    }
    step();
    char* to = output;
    for (int rank = 0; rank < ranks_; to += received[rank++]) {
      const size_t bytes = piece(received[rank], begin);
      if (bytes != 0) std::memcpy(to + begin, readable(rank) + rank_ * share, bytes);
    }
  }
}

}  // namespace outboard::distributed
