// SPDX-License-Identifier: Apache-2.0

// A process may die, and a disk be full, at each step of each verb. What is there afterwards is
// what was there before, or what a verb that is run again completes; and no certificate is out of
// which the record knows nothing.

#include <errno.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>

#include "daemon/gate/authority/authority.h"
#include "daemon/gate/authority/folder_for_tests.h"
#include "kernel/base/clock_for_tests.h"

namespace djinn::authority {
namespace {

constexpr int kSurvived = 0;
constexpr int kFailed = 1;
constexpr int kDied = 17;

enum class Fault { kDeath, kFullDisk };

// Fails its Nth step, having done half of it where that can be halved.
class FaultyDisk final : public Disk {
 public:
  FaultyDisk(Fault fault, int step) : fault_(fault), left_(step) {}

  Status write(const std::string& path, std::string_view bytes, Mode mode) override {
    if (!is_next()) return Disk::write(path, bytes, mode);
    (void)Disk::write(path, bytes.substr(0, bytes.size() / 2), mode);
    return fail();
  }
  Status make_folder(const std::string& path, Mode mode) override {
    return is_next() ? fail() : Disk::make_folder(path, mode);
  }
  Status rename(const std::string& from, const std::string& to, Existing existing) override {
    return is_next() ? fail() : Disk::rename(from, to, existing);
  }
  Status sync_folder(const std::string& path) override {
    return is_next() ? fail() : Disk::sync_folder(path);
  }

 private:
  bool is_next() { return left_-- == 0; }
  Status fail() {
    if (fault_ == Fault::kDeath) ::_exit(kDied);
    return system_error("write", ENOSPC);
  }

  Fault fault_;
  int left_;
};

Founding some_founding() {
  return {.trust_domain = "example.org", .host = "box"};
}

class Crashes : public testing::TestWithParam<Fault> {
 protected:
  Crashes() { clock_.now_ns = 1'800'000'000 * kNsPerSecond; }

  using Verb = std::function<Status(Disk& disk)>;

  // Runs the verb in a process of its own, with a fault at that step. Whether there was such a
  // step.
  bool runs_into(int step, const Verb& verb) {
    const pid_t pid = ::fork();
    EXPECT_GE(pid, 0);
    if (pid == 0) {
      FaultyDisk disk(GetParam(), step);
      ::_exit(verb(disk) ? kSurvived : kFailed);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status));
    const int expected = GetParam() == Fault::kDeath ? kDied : kFailed;
    EXPECT_TRUE(WEXITSTATUS(status) == kSurvived || WEXITSTATUS(status) == expected);
    return WEXITSTATUS(status) != kSurvived;
  }
  // For each step of the verb: the state that `given` makes, the fault, what `then` expects.
  void at_each_step(const std::function<void()>& given, const Verb& verb,
                    const std::function<void(int)>& then, int steps_min) {
    int step = 0;
    for (bool has_failed = true; has_failed; ++step) {
      std::filesystem::remove_all(place());
      given();
      has_failed = runs_into(step, verb);
      then(step);
    }
    EXPECT_GT(step, steps_min);
  }
  Status found(Disk& disk) {
    const auto made = Authority::found(disk, clock_, place(), some_founding());
    return made ? Status() : made.error();
  }
  Result<Authority> open(Disk& disk) { return Authority::open(disk, clock_, place()); }
  std::string place() const { return folder_.path() + "/deep/gate"; }

  FolderForTests folder_;
  ClockByHand clock_;
  Disk disk_;
};

TEST_P(Crashes, of_an_init_there_is_nothing_or_what_renew_completes) {
  at_each_step(
      [] {}, [&](Disk& disk) { return found(disk); },
      [&](int step) {
        if (is_there(place() + "/ca")) {
          auto opened = open(disk_);
          ASSERT_TRUE(opened.ok()) << step;
          ASSERT_TRUE(opened->renew().ok()) << step;
          ASSERT_TRUE(opened->enrol({.name = "alice"}).ok()) << step;
        } else {
          const Status again = found(disk_);
          ASSERT_TRUE(again.ok()) << step << again.error().message;
        }
        for (const char* name : {"certificate.pem", "key.pem", "authorities.pem", "revoked.pem"}) {
          EXPECT_TRUE(is_there(place() + '/' + name)) << step;
        }
      },
      12);
}

TEST_P(Crashes, of_an_enrolment_the_record_knows_or_nothing_was_issued) {
  at_each_step(
      [&] { ASSERT_TRUE(found(disk_).ok()); },
      [&](Disk& disk) -> Status {
        DJINN_TRY(Authority opened, open(disk));
        DJINN_TRY(const Enrolled enrolled, opened.enrol({.name = "alice"}));
        return put(disk, place() + "/alice.pem", enrolled.profile, 0600, Existing::kRefused);
      },
      [&](int step) {
        auto opened = open(disk_);
        ASSERT_TRUE(opened.ok()) << step << opened.error().message;
        const size_t issued = opened->record().issued.size();
        EXPECT_TRUE(issued == 1 || issued == 2) << step;
        if (is_there(place() + "/alice.pem")) {
          EXPECT_EQ(issued, 2U) << step;
          EXPECT_TRUE(bytes_of(place() + "/alice.pem").ends_with("-----END CERTIFICATE-----\n"));
        }
        EXPECT_TRUE(opened->ends().ok()) << step;
        EXPECT_TRUE(opened->enrol({.name = "bob"}).ok()) << step;
        EXPECT_EQ(opened->record().issued.size(), issued + 1) << step;
      },
      8);
}

TEST_P(Crashes, what_the_record_says_is_revoked_stays_so_and_comes_to_be_on_the_list) {
  at_each_step(
      [&] {
        ASSERT_TRUE(found(disk_).ok());
        ASSERT_TRUE(open(disk_)->enrol({.name = "alice"}).ok());
      },
      [&](Disk& disk) -> Status {
        DJINN_TRY(Authority opened, open(disk));
        const auto revoked = opened.revoke("alice");
        return revoked ? Status() : revoked.error();
      },
      [&](int step) {
        auto opened = open(disk_);
        ASSERT_TRUE(opened.ok()) << step;
        const bool is_revoked = opened->record().issued.back().revoked_s.has_value();
        const uint64_t number = opened->record().list_number;
        EXPECT_TRUE(opened->ends().ok()) << step;
        const auto again = opened->revoke("alice");
        ASSERT_TRUE(again.ok()) << step;
        EXPECT_EQ(opened->record().list_number, number + 1);
        EXPECT_TRUE(again->front().revoked_s.has_value());
        EXPECT_TRUE(is_revoked || step <= 2) << step;  // from the record's rename on
      },
      5);
}

TEST_P(Crashes, a_renewal_leaves_a_gate_with_a_key_that_fits) {
  at_each_step([&] { ASSERT_TRUE(found(disk_).ok()); },
               [&](Disk& disk) -> Status {
                 DJINN_TRY(Authority opened, open(disk));
                 const auto renewed = opened.renew();
                 return renewed ? Status() : renewed.error();
               },
               [&](int step) {
                 const auto gate =
                     certificate_of(bytes_of(place() + "/certificate.pem"), "certificate");
                 const auto key = key_of(bytes_of(place() + "/key.pem"), "key");
                 ASSERT_TRUE(gate.ok() && key.ok()) << step;
                 EXPECT_TRUE(is_key_of(**key, **gate)) << step;
                 ASSERT_TRUE(open(disk_)->renew().ok()) << step;
               },
               8);
}

INSTANTIATE_TEST_SUITE_P(Faults, Crashes, testing::Values(Fault::kDeath, Fault::kFullDisk),
                         [](const auto& fault) {
                           return fault.param == Fault::kDeath ? "death" : "full_disk";
                         });

}  // namespace
}  // namespace djinn::authority
