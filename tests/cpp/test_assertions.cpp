// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "fixture.h"
#include "runtime/base/error.h"

/// What a failed assertion of a kernel does to whoever waits. Here a fill stands for the kernel that writes the code,
/// so that devices without programs are tested too.
using namespace outboard;
using fixture::device;

namespace {

constexpr int32_t kIndexCode = 7, kOtherCode = 8;

void fail_on(Stream& stream, int32_t code) {
  stream.fill(device().assertions().word(), &code, sizeof(code), sizeof(code));
  stream.expect_assertions();
}

void know() {
  device().assertions().add(kIndexCode, Assertions::kIndexError, "index out of range");
  device().assertions().add(kOtherCode, Assertions::kRuntimeError, "value out of range");
}

/// The text of what a wait throws, "" if it throws nothing.
template <typename Wait>
std::string reported(Wait&& wait) {
  try {
    wait();
  } catch (const IndexError& error) {
    return std::string("IndexError: ") + error.what();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST(reported_once_by_the_next_wait) {
  know();
  Stream& stream = device().default_stream();
  for (int i = 0; i < 5; ++i) {
    fail_on(stream, kIndexCode);
    CHECK(reported([&] { stream.synchronize(); }).rfind("IndexError: index out of range", 0) == 0);
    CHECK_EQ(reported([&] { stream.synchronize(); }), std::string());
    fail_on(stream, kOtherCode);
    CHECK(reported([&] { device().synchronize(); }).rfind("value out of range", 0) == 0);
    CHECK_EQ(reported([&] { device().synchronize(); }), std::string());
  }
}

TEST(what_waits_inside_the_runtime_reports_nothing) {
  know();
  Stream& stream = device().default_stream();
  fail_on(stream, kIndexCode);
  stream.finish();
  CHECK(!reported([&] { stream.synchronize(); }).empty());
}

TEST(an_event_carries_the_duty_to_report) {
  know();
  Stream& first = device().pool_stream();
  Stream& second = device().pool_stream();
  Event event(device());
  fail_on(first, kIndexCode);
  event.record(first);
  CHECK(!reported([&] { event.synchronize(); }).empty());
  fail_on(first, kIndexCode);
  event.record(first);
  second.wait(event);
  CHECK(!reported([&] { second.synchronize(); }).empty());
  CHECK_EQ(reported([&] { first.synchronize(); }), std::string());
}

TEST(an_unknown_code_is_an_internal_error) {
  fail_on(device().default_stream(), 12345);
  CHECK(!reported([&] { device().synchronize(); }).empty());
  CHECK_EQ(reported([&] { device().synchronize(); }), std::string());
}

TEST(no_failure_is_lost_between_threads) {
  know();
  std::vector<std::thread> threads;
  std::vector<int> seen(4, 0);
  for (size_t t = 0; t < seen.size(); ++t) {
    Stream& stream = device().pool_stream();
    threads.emplace_back([&stream, &seen, t] {
      for (int i = 0; i < 200; ++i) {
        fail_on(stream, kIndexCode);
        if (!reported([&] { stream.synchronize(); }).empty()) ++seen[t];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  int total = 0;
  for (int count : seen) total += count;
  CHECK(total > 0);  // failures that coincide are reported as one
  CHECK_EQ(reported([&] { device().synchronize(); }), std::string());
}

int main() { return fixture::run_all(); }
