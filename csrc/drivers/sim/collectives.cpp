// SPDX-License-Identifier: Apache-2.0
#include "sim/collectives.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <type_traits>

namespace outboard::sim {
namespace {

constexpr uint64_t kPiece = 256 << 10;
constexpr auto kPause = std::chrono::microseconds(20);
constexpr uint32_t kNobody = 1u << 31;  // a member gave up before all were here

enum : uint32_t { kUInt8 = 0, kInt8 = 1, kInt32 = 3, kInt64 = 4, kFloat32 = 6, kFloat64 = 7 };  // as PyTorch counts

/// Bytes of an element, by dtype; 0: no collective takes it.
uint64_t element_bytes(uint32_t dtype) {
  switch (dtype) {
    case kUInt8:
    case kInt8:
      return 1;
    case kInt32:
    case kFloat32:
      return 4;
    case kInt64:
    case kFloat64:
      return 8;
    default:
      return 0;
  }
}

bool reduces(uint32_t kind) { return kind == OB_ALL_REDUCE || kind == OB_REDUCE || kind == OB_REDUCE_SCATTER; }

/// Integers wrap around.
template <typename T, bool = std::is_integral_v<T>>
struct Computed {
  using Type = std::make_unsigned_t<T>;
};
template <typename T>
struct Computed<T, false> {
  using Type = T;
};

template <typename T>
T combined(uint32_t reduction, T a, T b) {
  using Type = typename Computed<T>::Type;
  const auto x = static_cast<Type>(a), y = static_cast<Type>(b);
  if constexpr (std::is_integral_v<T>) {
    if (reduction == OB_BIT_AND) return static_cast<T>(x & y);
    if (reduction == OB_BIT_OR) return static_cast<T>(x | y);
    if (reduction == OB_BIT_XOR) return static_cast<T>(x ^ y);
  }
  if (reduction == OB_PRODUCT) return static_cast<T>(x * y);
  if (reduction == OB_MIN) return a < b || a != a ? a : b;  // NaN stays
  if (reduction == OB_MAX) return a > b || a != a ? a : b;
  return static_cast<T>(x + y);
}

/// Reduces what the members have at `from` into `target`, in the order of ranks.
template <typename T>
void fold(uint32_t reduction, const std::vector<const char*>& from, char* target, uint64_t bytes) {
  for (uint64_t at = 0; at < bytes; at += sizeof(T)) {
    T result, other;
    std::memcpy(&result, from[0] + at, sizeof(T));
    for (size_t rank = 1; rank < from.size(); ++rank) {
      std::memcpy(&other, from[rank] + at, sizeof(T));
      result = combined(reduction, result, other);
    }
    if (reduction == OB_MEAN) result = static_cast<T>(result / static_cast<T>(from.size()));
    std::memcpy(target + at, &result, sizeof(T));
  }
}

using Fold = void (*)(uint32_t, const std::vector<const char*>&, char*, uint64_t);

Fold fold_of(uint32_t dtype) {
  switch (dtype) {
    case kUInt8:
      return fold<uint8_t>;
    case kInt8:
      return fold<int8_t>;
    case kInt32:
      return fold<int32_t>;
    case kInt64:
      return fold<int64_t>;
    case kFloat32:
      return fold<float>;
    default:
      return fold<double>;
  }
}

char* host(ob_ptr address) { return reinterpret_cast<char*>(address); }

/// What all members must say alike.
struct Terms {
  uint32_t kind, dtype, reduction, root;
  uint64_t count;

  bool operator!=(const Terms& other) const {
    return kind != other.kind || dtype != other.dtype || reduction != other.reduction || root != other.root ||
           count != other.count;
  }
};

Terms terms_of(const ob_collective& what) {
  const bool rooted = what.kind == OB_BROADCAST || what.kind == OB_REDUCE;
  return {what.kind, what.dtype, reduces(what.kind) ? what.reduction : 0, rooted ? what.root : 0,
          what.kind == OB_ALL_TO_ALL ? 0 : what.count};
}

}  // namespace

bool is_supported(uint32_t kind, uint32_t dtype, uint32_t reduction) {
  if (kind > OB_ALL_TO_ALL || element_bytes(dtype) == 0) return false;
  const bool real = dtype == kFloat32 || dtype == kFloat64;
  const bool of_bits = reduction == OB_BIT_AND || reduction == OB_BIT_OR || reduction == OB_BIT_XOR;
  return !reduces(kind) || (reduction <= OB_MEAN && !(real && of_bits));
}

Part::Part(const ob_collective& given, uint32_t members) : what(given) {
  what.sent = what.received = nullptr;
  if (given.kind != OB_ALL_TO_ALL) return;
  for (uint32_t rank = 0; rank < members; ++rank) {
    sent.push_back(given.sent[rank] * element_bytes(given.dtype));
    received.push_back(given.received[rank] * element_bytes(given.dtype));
  }
}

uint64_t Part::source_bytes(uint32_t rank, uint32_t members) const {
  if (what.kind == OB_ALL_TO_ALL) return std::accumulate(sent.begin(), sent.end(), uint64_t{0});
  if (what.kind == OB_BROADCAST && rank != what.root) return 0;
  return what.count * element_bytes(what.dtype) * (what.kind == OB_REDUCE_SCATTER ? members : 1);
}

uint64_t Part::target_bytes(uint32_t rank, uint32_t members) const {
  if (what.kind == OB_ALL_TO_ALL) return std::accumulate(received.begin(), received.end(), uint64_t{0});
  if (what.kind == OB_REDUCE && rank != what.root) return 0;
  return what.count * element_bytes(what.dtype) * (what.kind == OB_ALL_GATHER ? members : 1);
}

struct Members::Shared {
  std::atomic<uint32_t> arrived, aborted;
};

struct alignas(64) Members::Slot {
  std::atomic<uint64_t> steps;
  Terms terms;
  uint64_t left;  // bytes of what a member shares, from this piece on
  alignas(64) char piece[kPiece];
};

uint64_t Members::bytes(uint32_t size) { return sizeof(Slot) * (uint64_t{size} + 1); }

Members::Shared& Members::shared() const { return *reinterpret_cast<Shared*>(memory_); }

Members::Slot& Members::slot(uint32_t rank) const {
  return *reinterpret_cast<Slot*>(memory_ + sizeof(Slot) * (uint64_t{rank} + 1));
}

Members::Members(const std::string& name, uint32_t rank, uint32_t size) : name_(name), rank_(rank), size_(size) {
  const int file = shm_open(name.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  // New memory is full of zeros, and members make it equally large.
  const bool sized = file >= 0 && ftruncate(file, static_cast<off_t>(bytes(size))) == 0;
  void* const memory = sized ? mmap(nullptr, bytes(size), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
  if (file >= 0) close(file);
  if (memory == MAP_FAILED) throw std::runtime_error("no memory that processes share: " + name);
  memory_ = static_cast<char*>(memory);
  ++shared().arrived;
}

Members::~Members() {
  shm_unlink(name_.c_str());  // also if not all came; else the first rank has done so
  munmap(memory_, bytes(size_));
}

bool Members::are_all_here() {
  const uint32_t seen = shared().arrived;
  if (seen > size_) throw std::runtime_error("a member of the communicator gave up before all had joined");
  if (seen == size_) shm_unlink(name_.c_str());  // the first rank does it
  return seen == size_;
}

bool Members::is_aborted() const { return shared().aborted != 0; }

void Members::abort() {
  shared().aborted = 1;
  // Either all come or all are told that they did not: who gives up takes the count from those still to come.
  std::atomic<uint32_t>& arrived = shared().arrived;
  uint32_t seen = arrived;
  while (seen < size_ && !arrived.compare_exchange_weak(seen, kNobody)) {
  }
}

void Members::meet() {
  slot(rank_).steps = ++steps_;
  for (uint32_t rank = 0; rank < size_; ++rank) {
    while (slot(rank).steps < steps_) {
      if (is_aborted()) throw std::runtime_error("the communicator was aborted");
      std::this_thread::sleep_for(kPause);
    }
  }
}

void Members::require_agreement(const Part& part) {
  slot(rank_).terms = terms_of(part.what);
  meet();
  bool agreed = true;
  for (uint32_t rank = 0; rank < size_; ++rank) agreed = agreed && !(slot(rank).terms != slot(rank_).terms);
  meet();
  if (!agreed) throw std::runtime_error("members of the communicator called different collectives");
}

template <typename Take>
void Members::share(const char* data, uint64_t bytes, Take take) {
  bool more = true;
  for (uint64_t at = 0; more; at += kPiece) {
    Slot& own = slot(rank_);
    own.left = bytes > at ? bytes - at : 0;
    if (own.left != 0) std::memcpy(own.piece, data + at, std::min(own.left, kPiece));
    meet();
    more = false;
    for (uint32_t rank = 0; rank < size_; ++rank) more = more || slot(rank).left > kPiece;
    take(at);
    meet();
  }
}

void Members::broadcast(const Part& part) {
  const Slot& root = slot(part.what.root);
  share(host(part.what.source), part.source_bytes(rank_, size_),
        [&](uint64_t at) { std::memcpy(host(part.what.target) + at, root.piece, std::min(root.left, kPiece)); });
}

void Members::gather(const Part& part) {
  const uint64_t each = part.source_bytes(rank_, size_);
  share(host(part.what.source), each, [&](uint64_t at) {
    for (uint32_t rank = 0; rank < size_; ++rank) {
      const Slot& from = slot(rank);
      std::memcpy(host(part.what.target) + rank * each + at, from.piece, std::min(from.left, kPiece));
    }
  });
}

void Members::reduce(const Part& part, const char* source, bool wanted) {
  std::vector<const char*> pieces;
  for (uint32_t rank = 0; rank < size_; ++rank) pieces.push_back(slot(rank).piece);
  const Fold fold = fold_of(part.what.dtype);
  share(source, part.what.count * element_bytes(part.what.dtype), [&](uint64_t at) {
    if (!wanted) return;
    fold(part.what.reduction, pieces, host(part.what.target) + at, std::min(slot(rank_).left, kPiece));
  });
}

/// What all members have for one, for each of them in turn.
void Members::scatter(const Part& part) {
  uint64_t begin = 0;
  for (uint32_t to = 0; to < size_; begin += part.sent[to++]) {
    share(host(part.what.source) + begin, part.sent[to], [&](uint64_t at) {
      char* target = host(part.what.target);
      for (uint32_t rank = 0; to == rank_ && rank < size_; target += part.received[rank++]) {
        const uint64_t room = part.received[rank] > at ? part.received[rank] - at : 0;
        std::memcpy(target + at, slot(rank).piece, std::min({slot(rank).left, room, kPiece}));
      }
    });
  }
}

std::string Members::run(const Part& part) {
  try {
    require_agreement(part);
    const ob_collective& what = part.what;
    const uint64_t bytes = what.count * element_bytes(what.dtype);
    switch (what.kind) {
      case OB_BROADCAST:
        broadcast(part);
        break;
      case OB_ALL_GATHER:
        gather(part);
        break;
      case OB_ALL_TO_ALL:
        scatter(part);
        break;
      case OB_REDUCE_SCATTER:
        for (uint32_t rank = 0; rank < size_; ++rank) reduce(part, host(what.source) + rank * bytes, rank == rank_);
        break;
      default:
        reduce(part, host(what.source), what.kind == OB_ALL_REDUCE || what.root == rank_);
    }
    return "";
  } catch (const std::runtime_error& error) {
    return error.what();
  }
}

}  // namespace outboard::sim
