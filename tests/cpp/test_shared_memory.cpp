// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "check.h"
#include "distributed/shared_memory.h"

using namespace outboard::distributed;

namespace {

constexpr size_t kSmall = 1024;  ///< capacity that needs many steps
constexpr std::chrono::seconds kTimeout{60};

using Body = std::function<void(SharedMemory& memory, int rank)>;

Terms terms(const char* text, std::chrono::milliseconds timeout = kTimeout) { return {text, timeout}; }

void add(const void* a, const void* b, void* result, size_t count) {
  const auto* const left = static_cast<const int*>(a);
  const auto* const right = static_cast<const int*>(b);
  for (size_t i = 0; i < count; ++i) static_cast<int*>(result)[i] = left[i] + right[i];
}

const Combination kSum{add, sizeof(int)};

/// Runs a rank in this process, and returns its exit code.
int run_rank(SharedMemory& memory, int rank, const Body& body) {
  try {
    body(memory, rank);
    return 0;
  } catch (const std::exception& error) {
    std::printf("rank %d: %s\n", rank, error.what());
    std::fflush(stdout);
    return 1;
  }
}

/// Runs a body in so many processes, of which this one is the first; those but `killed` must end well.
void on_ranks(int ranks, size_t capacity, const Body& body, int killed = -1) {
  const std::unique_ptr<SharedMemory> memory = SharedMemory::create(ranks, capacity);
  CHECK(memory != nullptr);
  int ready[2];
  CHECK_EQ(pipe(ready), 0);
  std::vector<pid_t> processes;
  std::fflush(stdout);
  for (int rank = 1; rank < ranks; ++rank) {
    const pid_t process = fork();
    if (process == 0) {
      const auto own = SharedMemory::attach(memory->place(), rank);
      if (own == nullptr || write(ready[1], "x", 1) != 1) _exit(2);
      _exit(run_rank(*own, rank, body));
    }
    processes.push_back(process);
  }
  char byte = 0;
  for (int rank = 1; rank < ranks; ++rank) CHECK_EQ(read(ready[0], &byte, 1), 1);
  close(ready[0]);
  close(ready[1]);
  memory->seal();
  int codes = run_rank(*memory, 0, body);
  for (int rank = 1; rank < ranks; ++rank) {
    int status = 0;
    waitpid(processes[rank - 1], &status, 0);
    codes += rank == killed ? (WIFSIGNALED(status) ? 0 : 1) : status;
  }
  CHECK_EQ(codes, 0);
}

std::vector<int> numbers(size_t count, int rank) {
  std::vector<int> values(count);
  std::iota(values.begin(), values.end(), rank * 1000);
  return values;
}

std::string text_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST(sums_are_the_same_everywhere) {
  for (const int ranks : {2, 3, 4}) {
    for (const size_t capacity : {kSmall, SharedMemory::kCapacity}) {
      on_ranks(ranks, capacity, [ranks](SharedMemory& memory, int rank) {
        for (const size_t count : {0, 1, 63, 255, 256, 257, 5000, 100003}) {
          std::vector<int> own = numbers(count, rank);
          memory.all_reduce(terms("sum"), own.data(), count, kSum);
          for (size_t i = 0; i < count; ++i) {
            CHECK_EQ(own[i], static_cast<int>(i) * ranks + 1000 * ranks * (ranks - 1) / 2);
          }
        }
      });
    }
  }
}

TEST(a_reduction_changes_one_rank) {
  on_ranks(3, kSmall, [](SharedMemory& memory, int rank) {
    for (const size_t count : {7, 3000}) {
      std::vector<int> own = numbers(count, rank);
      memory.reduce(terms("reduce"), own.data(), count, kSum, 2);
      for (size_t i = 0; i < count; ++i) {
        CHECK_EQ(own[i], rank == 2 ? static_cast<int>(i) * 3 + 3000 : static_cast<int>(i) + rank * 1000);
      }
    }
  });
}

TEST(contents_reach_all_ranks) {
  on_ranks(3, kSmall, [](SharedMemory& memory, int rank) {
    for (int round = 0; round < 20; ++round) {
      const size_t count = static_cast<size_t>(round) * 97;
      std::vector<int> own = numbers(count, rank + round);
      memory.broadcast(terms("broadcast"), own.data(), count * sizeof(int), round % 3);
      CHECK(own == numbers(count, round % 3 + round));
      std::vector<std::vector<int>> all(3, std::vector<int>(count));
      memory.all_gather(terms("gather"), numbers(count, rank).data(), {all[0].data(), all[1].data(), all[2].data()},
                        count * sizeof(int));
      for (int from = 0; from < 3; ++from) CHECK(all[from] == numbers(count, from));
      memory.barrier(terms("barrier"));
    }
  });
}

TEST(pieces_of_any_size_change_places) {
  on_ranks(3, kSmall, [](SharedMemory& memory, int rank) {
    const auto bytes = [](int from, int to) { return static_cast<uint64_t>((from * 3 + to) * 301); };
    std::vector<uint64_t> sent, received;
    std::string input, expected;
    for (int other = 0; other < 3; ++other) {
      sent.push_back(bytes(rank, other));
      received.push_back(bytes(other, rank));
      input += std::string(sent.back(), static_cast<char>('a' + rank * 3 + other));
      expected += std::string(received.back(), static_cast<char>('a' + other * 3 + rank));
    }
    std::string output(expected.size(), '-');
    memory.all_to_all(terms("exchange"), input.data(), sent, output.data(), received);
    CHECK(output == expected);
  });
}

TEST(all_ranks_are_told_of_a_mismatch_and_go_on) {
  on_ranks(3, kSmall, [](SharedMemory& memory, int rank) {
    std::vector<int> own(2000 + rank, 1);
    const std::string what = "sum of " + std::to_string(own.size() - rank / 2);
    const Terms different{what, kTimeout};
    CHECK_THROWS(memory.all_reduce(different, own.data(), own.size(), kSum), MismatchError);
    const std::string text = text_of([&] { memory.broadcast(different, own.data(), 4, 0); });
    CHECK(text.find("rank 0: sum of 2000") != std::string::npos);
    CHECK(text.find("rank 1: sum of 2001") != std::string::npos);
    const std::vector<uint64_t> sizes{1, 1, static_cast<uint64_t>(rank == 2 ? 2 : 1)};
    char input[4] = {}, output[4] = {};
    CHECK_THROWS(memory.all_to_all(terms("exchange"), input, sizes, output, {1, 1, 1}), MismatchError);
    int one = 1;
    memory.all_reduce(terms("sum"), &one, 1, kSum);
    CHECK_EQ(one, 3);
  });
}

TEST(a_killed_rank_is_noticed) {
  on_ranks(
      3, kSmall,
      [](SharedMemory& memory, int rank) {
        memory.barrier(terms("barrier"));
        if (rank == 1) raise(SIGKILL);
        std::vector<int> own(5000);
        CHECK_THROWS(memory.all_reduce(terms("sum"), own.data(), own.size(), kSum), TransportError);
        CHECK(text_of([&] { memory.barrier(terms("barrier")); }).find("no use") != std::string::npos);
      },
      /*killed=*/1);
}

TEST(waits_end) {
  on_ranks(2, kSmall, [](SharedMemory& memory, int rank) {
    if (rank == 1) {
      usleep(700000);
      const std::string text = text_of([&] { memory.barrier(terms("barrier")); });
      CHECK(text.empty() || text.find("gave up") != std::string::npos);  // the other rank's step had come
      return;
    }
    const auto timeout = std::chrono::milliseconds(200);
    CHECK(text_of([&] { memory.barrier(terms("barrier", timeout)); }).find("Timed out") != std::string::npos);
  });
  on_ranks(2, kSmall, [](SharedMemory& memory, int rank) {
    if (rank == 1) memory.abort();
    CHECK_THROWS(memory.barrier(terms("barrier")), TransportError);
  });
  on_ranks(2, kSmall, [](SharedMemory& memory, int rank) {
    if (rank == 0) CHECK(text_of([&] { memory.barrier(terms("barrier")); }).find("closed") != std::string::npos);
  });
}

TEST(nobody_else_attaches) {
  const auto memory = SharedMemory::create(2, kSmall);
  SharedMemoryPlace place = memory->place();
  CHECK(SharedMemory::create(1) == nullptr);
  place.nonce += 2;
  CHECK(SharedMemory::attach(place, 1) == nullptr);
  place = memory->place();
  place.owner.boot[0] ^= 1;
  CHECK(SharedMemory::attach(place, 1) == nullptr);
  place = memory->place();
  place.capacity *= 8;
  CHECK(SharedMemory::attach(place, 1) == nullptr);
  CHECK(SharedMemory::attach(memory->place(), 1) != nullptr);
  memory->seal();
  CHECK(SharedMemory::attach(memory->place(), 1) == nullptr);
}

int main() { return check::run_all(); }
