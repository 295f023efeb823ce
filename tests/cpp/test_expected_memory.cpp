// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "check.h"
#include "common/expected_memory.h"

/// Memory that a thread makes ready: whoever takes it finds it whole, and it is not kept without need.
using outboard::common::ExpectedMemory;

namespace {

constexpr uint64_t kHuge = uint64_t{2} << 20;
constexpr uint64_t kSmall = 4096;
constexpr uint64_t kPages = 24;

/// Memory of the test's own, whose owner is never destroyed; nor is the memory.
struct Expected {
  explicit Expected(std::chrono::milliseconds patience = std::chrono::minutes(1))
      : bytes(ExpectedMemory::with_edges(kPages * kHuge)),
        memory(static_cast<char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))),
        pieces(*new ExpectedMemory(memory, bytes, patience)) {}

  uint64_t bytes;
  char* memory;
  ExpectedMemory& pieces;
};

/// Bytes that the system has found pages for.
uint64_t resident(const char* memory, uint64_t bytes) {
  const uint64_t begin = reinterpret_cast<uint64_t>(memory) / kSmall * kSmall;
  std::vector<unsigned char> pages(bytes / kSmall);
  mincore(reinterpret_cast<void*>(begin), pages.size() * kSmall, pages.data());
  uint64_t found = 0;
  for (const unsigned char page : pages) found += (page & 1) * kSmall;
  return found;
}

bool eventually(const std::function<bool()>& holds) {
  for (int i = 0; i < 3000; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

}  // namespace

TEST(memory_is_ready_before_it_is_taken) {
  Expected expected;
  CHECK(eventually([&] { return resident(expected.memory, expected.bytes) >= kPages * kHuge; }));
}

TEST(pieces_are_apart_and_begin_at_whole_pages) {
  Expected expected;
  char* const first = static_cast<char*>(expected.pieces.take(1));
  char* const second = static_cast<char*>(expected.pieces.take(kHuge + 1));
  char* const third = static_cast<char*>(expected.pieces.take(kHuge));
  CHECK_EQ(reinterpret_cast<uint64_t>(first) % kHuge, 0u);
  CHECK_EQ(second - first, static_cast<int64_t>(kHuge));
  CHECK_EQ(third - second, static_cast<int64_t>(2 * kHuge));
}

TEST(what_is_not_there_is_refused) {
  Expected expected;
  CHECK(expected.pieces.take((kPages + 1) * kHuge) == nullptr);
  CHECK(expected.pieces.take(kPages * kHuge) != nullptr);
  CHECK(expected.pieces.take(1) == nullptr);
}

TEST(nothing_is_written_to_what_is_taken) {
  for (int round = 0; round < 5; ++round) {
    Expected expected;
    std::vector<char*> taken;
    for (uint64_t i = 0; i < kPages; ++i) {
      taken.push_back(static_cast<char*>(expected.pieces.take(kHuge)));
      std::memset(taken.back(), static_cast<int>(i + 1), kHuge);
    }
    for (uint64_t i = 0; i < kPages; ++i) {
      const std::vector<char> wanted(kHuge, static_cast<char>(i + 1));
      CHECK(std::memcmp(taken[i], wanted.data(), kHuge) == 0);
    }
  }
}

TEST(what_is_given_back_takes_no_pages) {
  Expected expected;
  char* const piece = static_cast<char*>(expected.pieces.take(2 * kHuge));
  std::memset(piece, 1, 2 * kHuge);
  CHECK_EQ(resident(piece, 2 * kHuge), 2 * kHuge);
  CHECK(expected.pieces.give_back(piece));
  CHECK_EQ(resident(piece, 2 * kHuge), 0u);
  CHECK(!expected.pieces.give_back(piece));
}

TEST(memory_from_elsewhere_is_not_given_back) {
  Expected expected;
  char other = 0;
  CHECK(!expected.pieces.give_back(&other));
}

TEST(what_nobody_takes_goes_back) {
  Expected expected(std::chrono::milliseconds(100));
  char* const piece = static_cast<char*>(expected.pieces.take(kHuge));
  std::memset(piece, 1, kHuge);
  CHECK(eventually([&] { return resident(expected.memory, expected.bytes) >= kPages * kHuge; }));
  CHECK(eventually([&] { return resident(expected.memory, expected.bytes) == kHuge; }));
  CHECK(expected.pieces.take(1) == nullptr);
  CHECK_EQ(piece[kHuge - 1], 1);
}

int main() { return check::run_all(); }
