// SPDX-License-Identifier: Apache-2.0
/// A driver's own collectives, between threads of this process and between processes, in stream order.
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <future>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "fixture.h"
#include "runtime/base/error.h"
#include "runtime/streams/collectives.h"

using namespace outboard;
using fixture::Holder;

namespace {

constexpr uint32_t kByte = 0, kInt64 = 4, kFloat32 = 6, kBFloat16 = 15;  // as PyTorch counts
constexpr int kMembers = 3;
constexpr std::chrono::seconds kPatience{60};

/// Waits until all members are there. Throws Error if they will not be.
void wait_for_all(Communicator& communicator) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!communicator.is_joined()) {
    CHECK(std::chrono::steady_clock::now() < end);
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

/// A member of a communicator on one device, with collectives on numbers of the host.
class Member {
 public:
  Member(Device& device, const std::string& id, int rank, int size)
      : rank(rank), communicator(std::make_shared<Communicator>(device, id, rank, size, kPatience)), device_(device) {
    wait_for_all(*communicator);
    std::promise<std::shared_ptr<Communicator>> there;
    there.set_value(communicator);
    coming_ = there.get_future();
  }

  /// Submits on `stream`, and returns where the result will be.
  template <typename T>
  std::shared_ptr<Holder> submit(Stream& stream, ob_collective what, const std::vector<T>& source, size_t results,
                                 std::vector<uint64_t> sent = {}, std::vector<uint64_t> received = {}) {
    Holder from(Allocation::create_internal(device_, std::max<size_t>(1, source.size() * sizeof(T))));
    auto to = std::make_shared<Holder>(Allocation::create_internal(device_, std::max<size_t>(1, results * sizeof(T))));
    if (!source.empty()) {
      const Pin pin(*from, stream);
      stream.copy(OB_HOST_TO_DEVICE, pin.pointer(), reinterpret_cast<uint64_t>(source.data()),
                  source.size() * sizeof(T));
      stream.synchronize();
    }
    Work work(stream);
    if (!source.empty()) what.source = work.resolve(*from);
    if (results != 0) what.target = work.resolve(**to);
    stream.collective(std::make_shared<DriverCollective>(coming_, what, std::move(sent), std::move(received)));
    return to;
  }

  template <typename T>
  std::vector<T> run(const ob_collective& what, const std::vector<T>& source, size_t results,
                     std::vector<uint64_t> sent = {}, std::vector<uint64_t> received = {}) {
    Stream& stream = device_.default_stream();
    const auto to = submit(stream, what, source, results, std::move(sent), std::move(received));
    std::vector<T> values(results);
    if (results != 0) {
      const Pin pin(**to, stream);
      stream.copy(OB_DEVICE_TO_HOST, reinterpret_cast<uint64_t>(values.data()), pin.pointer(), results * sizeof(T));
    }
    stream.synchronize();
    return values;
  }

  Device& device() const { return device_; }

  const int rank;
  const std::shared_ptr<Communicator> communicator;

 private:
  Device& device_;
  ComingCommunicator coming_;
};

/// Where a check fails, the others wait no longer for a member.
struct Release {
  ~Release() {
    if (std::uncaught_exceptions() > before) member.communicator->abort();
  }
  Member& member;
  const int before = std::uncaught_exceptions();
};

/// Calls a function as each member, on a thread and a device of its own, and throws what one of them threw.
void together(const std::function<void(Member&)>& function, int size = kMembers) {
  const std::string id = Communicator::make_id(fixture::device());
  std::vector<std::exception_ptr> errors(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        Member member(Runtime::get().device(rank), id, rank, size);
        const Release release{member};
        function(member);
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error != nullptr) std::rethrow_exception(error);
  }
}

ob_collective collective(ob_collective_kind kind, uint32_t dtype, uint64_t count, ob_reduction reduction = OB_SUM,
                         uint32_t root = 0) {
  ob_collective what{};
  what.kind = kind;
  what.dtype = dtype;
  what.count = count;
  what.reduction = reduction;
  what.root = root;
  return what;
}

template <typename T>
std::vector<T> filled(size_t count, T first, T step) {
  std::vector<T> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<T>(first + static_cast<T>(i % 100) * step);
  return values;
}

/// What the second of two processes does, and the first as well.
void exchange(Member& member, int size) {
  const auto sum = member.run(collective(OB_ALL_REDUCE, kInt64, 1000), filled<int64_t>(1000, member.rank, 1), 1000);
  CHECK(sum == filled<int64_t>(1000, size * (size - 1) / 2, size));
}

}  // namespace

TEST(all_kinds_between_members) {
  constexpr size_t kCount = 200001;  // more than the simulator moves at once
  together([&](Member& member) {
    const auto own = filled<float>(kCount, static_cast<float>(member.rank), 1.0f);
    const auto sum = filled<float>(kCount, 3.0f, 3.0f);
    CHECK(member.run(collective(OB_ALL_REDUCE, kFloat32, kCount), own, kCount) == sum);
    CHECK(member.run(collective(OB_ALL_REDUCE, kFloat32, kCount, OB_MEAN), own, kCount) ==
          filled<float>(kCount, 1.0f, 1.0f));
    const auto reduced =
        member.run(collective(OB_REDUCE, kFloat32, kCount, OB_MAX, 1), own, member.rank == 1 ? kCount : 0);
    if (member.rank == 1) CHECK(reduced == filled<float>(kCount, 2.0f, 1.0f));
    const auto sent = member.rank == 2 ? own : std::vector<float>();
    CHECK(member.run(collective(OB_BROADCAST, kFloat32, kCount, OB_SUM, 2), sent, kCount) ==
          filled<float>(kCount, 2.0f, 1.0f));
  });
}

TEST(gathering_and_scattering) {
  together([](Member& member) {
    const int64_t rank = member.rank;
    const std::vector<int64_t> own{rank, 10 + rank};
    CHECK(member.run(collective(OB_ALL_GATHER, kInt64, 2), own, 6) == std::vector<int64_t>({0, 10, 1, 11, 2, 12}));
    const std::vector<int64_t> all{rank, 1, 2, 3, 4, 5};
    const std::vector<std::vector<int64_t>> expected{{0, 1}, {8, 27}, {64, 125}};
    const auto product = member.run(collective(OB_REDUCE_SCATTER, kInt64, 2, OB_PRODUCT), all, 2);
    CHECK(product == expected[rank]);
    // Rank r sends r elements to each, so that from rank s come s.
    const std::vector<uint64_t> to(kMembers, rank), from{0, 1, 2};
    const auto arrived =
        member.run(collective(OB_ALL_TO_ALL, kInt64, 0), std::vector<int64_t>(3 * rank, rank), 3, to, from);
    CHECK(arrived == std::vector<int64_t>({1, 2, 2}));
  });
}

TEST(what_the_driver_does_not_do_is_said) {
  CHECK(has_collectives(fixture::device()));
  CHECK(is_supported(fixture::device(), OB_ALL_REDUCE, kInt64, OB_BIT_XOR));
  CHECK(!is_supported(fixture::device(), OB_ALL_REDUCE, kFloat32, OB_BIT_XOR));
  CHECK(!is_supported(fixture::device(), OB_ALL_REDUCE, kBFloat16, OB_SUM));
  CHECK(is_supported(fixture::device(), OB_ALL_GATHER, kByte, OB_SUM));
}

TEST(members_wait_for_one_another_on_the_device) {
  together([](Member& member) {
    Stream& stream = member.device().pool_stream();
    const auto begin = std::chrono::steady_clock::now();
    if (member.rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    const auto result = member.submit(stream, collective(OB_ALL_REDUCE, kInt64, 1), std::vector<int64_t>{1}, 1);
    // Who has come waits for nobody, and its stream does.
    if (member.rank == 0) CHECK(std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(150));
    if (member.rank == 0) CHECK(!stream.query());
    stream.synchronize();
  });
}

TEST(an_abort_fails_what_is_queued) {
  together(
      [](Member& member) {
        Stream& stream = member.device().pool_stream();
        if (member.rank != 0) {  // comes too late
          std::this_thread::sleep_for(std::chrono::milliseconds(100));
          member.communicator->abort();
          return;
        }
        const auto result = member.submit(stream, collective(OB_ALL_REDUCE, kInt64, 1), std::vector<int64_t>{1}, 1);
        Event end(member.device());
        end.record(stream);
        member.communicator->abort();
        CHECK_THROWS(end.synchronize(), Error);
        CHECK_THROWS(stream.synchronize(), Error);
        stream.synchronize();  // which says it once
        const auto later = [&] {
          member.submit(stream, collective(OB_ALL_REDUCE, kInt64, 1), std::vector<int64_t>{1}, 1);
          stream.synchronize();
        };
        CHECK_THROWS(later(), Error);
      },
      2);
}

TEST(an_abort_is_not_taken_for_a_member_that_did_not_come) {
  // Who is first aborts while the others still join.
  for (int i = 0; i < 50; ++i) together([](Member& member) { member.communicator->abort(); });
}

TEST(unlike_collectives_fail_and_the_communicator_goes_on) {
  together(
      [](Member& member) {
        const uint64_t count = member.rank == 0 ? 1 : 2;
        const auto mismatch = [&] {
          member.run(collective(OB_ALL_REDUCE, kInt64, count), std::vector<int64_t>(count, 1), count);
        };
        CHECK_THROWS(mismatch(), Error);
        exchange(member, 2);
      },
      2);
}

TEST(nobody_waits_in_the_driver_for_members_that_do_not_come) {
  const auto begin = std::chrono::steady_clock::now();
  const std::string id = Communicator::make_id(fixture::device());
  Communicator first(fixture::device(), id, 0, 3, kPatience), second(fixture::device(), id, 1, 3, kPatience);
  CHECK(!first.is_joined());
  CHECK(!second.is_joined());
  first.abort();
  first.abort();
  CHECK_THROWS(first.is_joined(), Error);
  CHECK_THROWS(second.is_joined(), Error);  // which is told
  CHECK(std::chrono::steady_clock::now() - begin < kPatience / 2);
}

TEST(a_driver_that_joins_in_no_other_way_waits_as_long_as_it_is_told) {
  ob_driver older = fixture::device().driver();
  older.communicator_joined = nullptr;
  static Device* const device = new Device(&older, fixture::device().handle(), 0);  // as every device, for good
  const std::string alone = Communicator::make_id(*device), id = Communicator::make_id(*device);
  try {
    Communicator(*device, alone, 0, 2, std::chrono::milliseconds(50));
    CHECK(false);
  } catch (const Error& error) {
    CHECK_EQ(error.status(), OB_NOT_READY);
  }
  std::thread other([&] { CHECK(Communicator(*device, id, 1, 2, kPatience).is_joined()); });
  CHECK(Communicator(*device, id, 0, 2, kPatience).is_joined());
  other.join();
  CHECK_EQ(older.stream_destroy(device->default_stream().handle()), OB_OK);
}

TEST(a_stream_waits_for_a_communicator_that_comes_later) {
  Stream& stream = fixture::device().pool_stream();
  Holder numbers(Allocation::create_internal(fixture::device(), sizeof(int64_t)));
  const auto submit = [&](const ComingCommunicator& coming) {
    Work work(stream);
    ob_collective what = collective(OB_ALL_REDUCE, kInt64, 1);
    what.source = what.target = work.resolve(*numbers);
    auto submitted = std::make_shared<DriverCollective>(coming, what);
    stream.collective(submitted);
    return submitted;
  };
  std::promise<std::shared_ptr<Communicator>> coming, failing;
  const auto submitted = submit(coming.get_future());
  Event end(fixture::device());
  end.record(stream);
  CHECK(!end.query() && !stream.query());
  const std::string id = Communicator::make_id(fixture::device());
  auto communicator = std::make_shared<Communicator>(fixture::device(), id, 0, 1, kPatience);
  wait_for_all(*communicator);
  coming.set_value(communicator);
  end.synchronize();
  CHECK(submitted->failure() == nullptr);

  const auto refused = submit(failing.get_future());
  failing.set_exception(std::make_exception_ptr(Error(OB_INTERNAL, "nobody came")));
  CHECK_THROWS(stream.synchronize(), Error);
  CHECK(refused->failure() != nullptr);
  stream.synchronize();
}

TEST(failures_of_collectives_are_told) {
  together([](Member& member) { exchange(member, 1); }, 1);
  for (const char* function : {"communicator_create", "communicator_joined"}) {
    fixture::fail(function, 1, OB_INTERNAL);
    CHECK_THROWS(together([](Member&) {}, 1), Error);
  }
  fixture::fail("collective", 1, OB_OUT_OF_MEMORY);
  CHECK_THROWS(together([](Member& member) { exchange(member, 1); }, 1), Error);
  together([](Member& member) { exchange(member, 1); }, 1);
  CHECK_EQ(fixture::live("communicator"), 0);
}

TEST(two_processes) {
  const std::string id = Communicator::make_id(fixture::device());
  std::string told;
  for (const char byte : id)
    told += static_cast<char>('a' + (byte >> 4 & 15)), told += static_cast<char>('a' + (byte & 15));
  int ended = -1;
  std::thread other([&] { ended = fixture::run_again(told); });
  {
    Member member(fixture::device(), id, 0, 2);
    exchange(member, 2);
  }
  other.join();
  CHECK_EQ(ended, 0);
}

int main(int count, char** arguments) {
  if (count < 2) return fixture::run_all();
  const std::string told = arguments[1];
  std::string id;
  for (size_t i = 0; i < told.size(); i += 2) id += static_cast<char>((told[i] - 'a') << 4 | (told[i + 1] - 'a'));
  Member member(fixture::device(), id, 1, 2);
  exchange(member, 2);
  return 0;
}
