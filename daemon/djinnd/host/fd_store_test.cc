// SPDX-License-Identifier: Apache-2.0

// Against a socket that stands for systemd's.
#include "daemon/djinnd/host/fd_store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "daemon/djinnd/loop/log.h"
#include "daemon/djinnd/memory/host_extents.h"
#include "ipc/codec/kept_codec.h"
#include "kernel/base/owned_state_for_tests.h"
#include "kernel/pal/memfd.h"

namespace djinn::daemon {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;

constexpr ModelId kModel{7};
constexpr Owner kRoot = Owner::of_user(0);
constexpr size_t kStoreMax = 100;
constexpr size_t kDescriptors = 3;  // of the model: manifest, extent, record

class FdStoreTest : public ::testing::Test {
 protected:
  FdStoreTest() {
    std::string pattern = fs::temp_directory_path() / "djinn-fd-store.XXXXXX";
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    const std::string path = directory_ + "/notify";
    address_.sun_family = AF_UNIX;
    path.copy(address_.sun_path, sizeof address_.sun_path - 1);
    ::setenv("NOTIFY_SOCKET", path.c_str(), 1);
    notifier_.emplace();
    events_.listen([this](const Event& event) {
      EXPECT_EQ(event.kind, EventKind::kModelNotKept);
      EXPECT_EQ(event.model, kModel);
      not_kept_.push_back(event.text);
    });
    fd_store_.emplace(*notifier_, devices_, events_, kStoreMax);
    Model& model = models_[kModel];
    model.id = kModel;
    model.key().domain = kRoot;
    model.manifest = *pal::make_sealed_memfd("manifest", std::as_bytes(std::span("manifest")));
    model.extents.push_back(*pal::make_sealed_memfd("extent", std::as_bytes(std::span("extent"))));
    model.extent_bytes.push_back(4096);
    StateForTests::set(model.phase, ModelPhase::kResident);
  }
  ~FdStoreTest() override {
    systemd_.reset();  // whoever waits for it gets an error
    ::unsetenv("NOTIFY_SOCKET");
    fs::remove_all(directory_);
  }

  void listen() {
    systemd_ = Fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::bind(systemd_.get(), address(), sizeof address_), 0);
    const timeval deadline{20, 0};
    ::setsockopt(systemd_.get(), SOL_SOCKET, SO_RCVTIMEO, &deadline, sizeof deadline);
  }

  // What systemd was told of the store, in order, up to now.
  std::vector<std::string> told() {
    notifier_->say("END=1");
    std::vector<std::string> messages;
    while (true) {
      std::array<char, 256> text{};
      alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
      iovec piece{text.data(), text.size()};
      msghdr message{};
      message.msg_iov = &piece;
      message.msg_iovlen = 1;
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      const ssize_t length = ::recvmsg(systemd_.get(), &message, MSG_CMSG_CLOEXEC);
      EXPECT_GT(length, 0) << "nothing came in time";
      if (length <= 0) return messages;
      const cmsghdr* const part = CMSG_FIRSTHDR(&message);
      if (part != nullptr && part->cmsg_type == SCM_RIGHTS) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(part), sizeof fd);
        const Fd given(fd);
      }
      const std::string said(text.data(), static_cast<size_t>(length));
      if (said == "END=1") return messages;
      if (said.starts_with("FDSTORE")) messages.push_back(said);
    }
  }

  // From now on the notifier's messages wait until somebody reads.
  void clog() {
    while (true) {
      const Fd sender(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (::sendto(sender.get(), "X=1", 3, 0, address(), sizeof address_) < 0) break;
    }
    while (notifier_->has_room(1)) notifier_->say("X=1");
  }

  static std::string this_boot() {
    const Fd file(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
    std::string id(36, ' ');
    EXPECT_EQ(::read(file.get(), id.data(), id.size()), 36);
    return id;
  }
  // As systemd is told.
  static std::string given(const std::string& part) {
    return "FDSTORE=1\nFDNAME=model." + text_of(kModel) + "." + part;
  }
  static std::string taken_out(const std::string& part) {
    return "FDSTOREREMOVE=1\nFDNAME=model." + text_of(kModel) + "." + part;
  }
  // The model as it is taken back with that record, whose other fields are those of kModel.
  std::vector<Model> taken_back(ipc::KeptModel record) {
    record.boot = this_boot();
    record.id = kModel;
    record.domain = kRoot.number();
    record.extent_bytes = {kExtentBytes};
    std::map<std::string, Fd> kept;
    const std::string name = "model." + text_of(kModel) + ".";
    kept[name + "record.4"] = *pal::make_sealed_memfd("record", ipc::encode(record));
    kept[name + "manifest.0"] = std::move(models_[kModel].manifest);
    kept[name + "extent.0"] = std::move(models_[kModel].extents[0]);
    return fd_store_->take_back(std::move(kept));
  }
  uint64_t huge_bytes_back(uint64_t told) {
    ipc::KeptModel record;
    record.huge_bytes = told;
    const std::vector<Model> back = taken_back(std::move(record));
    EXPECT_EQ(back.size(), 1u);
    return back.empty() ? 0 : back.front().huge_bytes;
  }
  const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(&address_); }

  static constexpr uint64_t kExtentBytes = sizeof "extent";

  std::string directory_;
  sockaddr_un address_{};
  Fd systemd_;
  std::vector<std::string> not_kept_;
  const SystemClock clock_;
  Events events_{clock_};
  Loop loop_;
  WorkQueue work_{loop_, "memory"};
  HostExtents extents_{work_};
  const Quotas quotas_;
  const Devices devices_{std::array{DeviceMemory{kHostDevice, 1 << 20, extents_}}, 1 << 20,
                         quotas_};
  std::optional<Notifier> notifier_;
  std::optional<FdStore> fd_store_;
  std::map<ModelId, Model> models_;
};

TEST_F(FdStoreTest, a_record_that_changes_is_given_before_the_old_one_is_taken_back) {
  listen();
  fd_store_->keep(models_);
  EXPECT_THAT(told(), ElementsAre(given("manifest.0"), given("extent.0"), given("record.1")));
  models_[kModel].call(kRoot, {"another", ""});
  fd_store_->keep(models_);
  fd_store_->keep(models_);
  EXPECT_THAT(told(), ElementsAre(given("record.2"), taken_out("record.1")));
  EXPECT_EQ(fd_store_->descriptors(), kDescriptors);
}

TEST_F(FdStoreTest, what_was_taken_back_stays_in_the_store_until_it_is_resident_or_given_up) {
  listen();
  fd_store_->keep(models_);
  EXPECT_THAT(told(), Contains(given("record.1")));
  fd_store_->keep({}, {kModel});
  fd_store_->keep(models_);
  EXPECT_THAT(told(), IsEmpty());
  fd_store_->keep({});
  EXPECT_THAT(told(), Contains(taken_out("record.1")));
}

TEST_F(FdStoreTest, a_record_of_another_boot_is_refused_and_taken_out_with_all_its_parts) {
  listen();
  ipc::KeptModel record;
  record.boot = "another boot";
  record.id = kModel;
  std::map<std::string, Fd> kept;
  const std::string name = "model." + text_of(kModel) + ".";
  kept[name + "record.4"] = *pal::make_sealed_memfd("record", ipc::encode(record));
  kept[name + "manifest.0"] = std::move(models_[kModel].manifest);
  EXPECT_TRUE(fd_store_->take_back(std::move(kept)).empty());
  EXPECT_THAT(told(), ElementsAre(taken_out("record.4"), taken_out("manifest.0")));
  EXPECT_EQ(fd_store_->descriptors(), 0u);
}

TEST_F(FdStoreTest, what_lay_in_huge_pages_is_known_after_a_restart) {
  listen();
  EXPECT_EQ(huge_bytes_back(4), 4u);
}

TEST_F(FdStoreTest, no_record_says_more_of_huge_pages_than_the_model_has_bytes) {
  listen();
  EXPECT_EQ(huge_bytes_back(100), kExtentBytes);
}

TEST_F(FdStoreTest, each_users_numerics_are_known_after_a_restart) {
  listen();
  const Owner other = *Owner::of_number(1001);
  ipc::KeptModel record;
  record.numerics = {{kRoot.number(), srg::Numerics::kExact},
                     {other.number(), srg::Numerics::kFastOnly}};
  const std::vector<Model> back = taken_back(std::move(record));
  ASSERT_EQ(back.size(), 1u);
  EXPECT_THAT(back.front().numerics, ElementsAre(Pair(kRoot, srg::Numerics::kExact),
                                                 Pair(other, srg::Numerics::kFastOnly)));
}

TEST_F(FdStoreTest, numerics_that_somebody_says_change_the_record) {
  listen();
  fd_store_->keep(models_);
  EXPECT_THAT(told(), Contains(given("record.1")));
  models_[kModel].numerics[kRoot] = srg::Numerics::kFast;
  fd_store_->keep(models_);
  EXPECT_THAT(told(), ElementsAre(given("record.2"), taken_out("record.1")));
}

TEST_F(FdStoreTest, a_model_of_a_device_that_is_gone_is_taken_out_with_all_its_parts) {
  listen();
  ipc::KeptModel record;
  record.boot = this_boot();
  record.id = kModel;
  record.device = "fake:0";
  std::map<std::string, Fd> kept;
  const std::string name = "model." + text_of(kModel) + ".";
  kept[name + "record.4"] = *pal::make_sealed_memfd("record", ipc::encode(record));
  kept[name + "extent.0"] = std::move(models_[kModel].extents[0]);
  EXPECT_TRUE(fd_store_->take_back(std::move(kept)).empty());
  EXPECT_THAT(told(), ElementsAre(taken_out("record.4"), taken_out("extent.0")));
}

TEST_F(FdStoreTest, a_copy_is_kept_behind_its_gpus_node_and_taken_out_when_it_is_gone) {
  listen();
  const DeviceId gpu{DeviceKind::kCuda, 1};
  std::vector<Fd> extents;
  for (int i = 0; i < 2; ++i) extents.push_back(*pal::make_memfd("extent", 4096));
  const std::vector<Copies::Kept> copies{{kModel, gpu, &extents}};
  fd_store_->keep_copies(copies);
  EXPECT_THAT(told(), IsEmpty()) << "its memory would go with the last process";
  const std::string copy = "copy." + text_of(kModel) + ".1.";
  fd_store_->keep_anchor(gpu, extents[0]);
  fd_store_->keep_copies(copies);
  fd_store_->keep_copies(copies);
  EXPECT_THAT(told(), ElementsAre("FDSTORE=1\nFDNAME=anchor.1\nFDPOLL=0",
                                  "FDSTORE=1\nFDNAME=" + copy + "0\nFDPOLL=0",
                                  "FDSTORE=1\nFDNAME=" + copy + "1\nFDPOLL=0"));
  EXPECT_EQ(fd_store_->descriptors(), 3u);
  fd_store_->keep_copies({});
  fd_store_->forget_anchor(gpu);
  EXPECT_THAT(told(), ElementsAre("FDSTOREREMOVE=1\nFDNAME=" + copy + "0",
                                  "FDSTOREREMOVE=1\nFDNAME=" + copy + "1",
                                  "FDSTOREREMOVE=1\nFDNAME=anchor.1"));
  EXPECT_EQ(fd_store_->descriptors(), 0u);
}

TEST_F(FdStoreTest, a_copy_comes_back_whole_or_is_taken_out) {
  listen();
  const DeviceId gpu{DeviceKind::kCuda, 0};
  const std::string whole = "copy." + text_of(kModel) + ".0.", part = "copy.00000000000a.0.";
  std::map<std::string, Fd> kept;
  for (const std::string& name : {whole + "0", whole + "1", part + "1"}) {
    kept[name] = *pal::make_memfd("extent", 4096);
  }
  kept["anchor.0"] = *pal::make_memfd("node", 4096);
  EXPECT_TRUE(fd_store_->take_anchor(kept, gpu).valid());
  EXPECT_FALSE(fd_store_->take_anchor(kept, {DeviceKind::kCuda, 1}).valid());
  const std::vector<KeptCopy> copies = fd_store_->take_copies(kept);
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].model, kModel);
  EXPECT_EQ(copies[0].device, gpu);
  EXPECT_EQ(copies[0].extents.size(), 2u);
  EXPECT_THAT(told(), ElementsAre("FDSTOREREMOVE=1\nFDNAME=" + part + "1"));
  EXPECT_TRUE(kept.empty());
  EXPECT_EQ(fd_store_->descriptors(), 3u);
}

TEST_F(FdStoreTest, records_wait_for_a_systemd_that_does_not_read) {
  listen();
  fd_store_->keep(models_);
  EXPECT_THAT(told(), Contains(given("record.1")));
  clog();
  models_[kModel].call(kRoot, {"another", ""});
  fd_store_->keep(models_);
  EXPECT_THAT(told(), IsEmpty());
  fd_store_->keep(models_);
  EXPECT_THAT(told(), ElementsAre(given("record.2"), taken_out("record.1")));
}

TEST_F(FdStoreTest, a_model_whose_descriptors_cannot_be_given_is_not_kept_and_tried_again) {
  listen();
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int lowest_free = Fd(::dup(systemd_.get())).get();
  const rlimit none{static_cast<rlim_t>(lowest_free), before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  fd_store_->keep(models_);
  fd_store_->keep(models_);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(fd_store_->descriptors(), 0u);
  EXPECT_EQ(fd_store_->models_not_kept(), 1u);
  EXPECT_THAT(not_kept_, ElementsAre(HasSubstr("duplicate a descriptor")));
  EXPECT_THAT(told(), Not(Contains(HasSubstr("FDSTORE=1"))));
  fd_store_->keep(models_);
  EXPECT_THAT(told(), Contains(given("record.1")));
  EXPECT_EQ(fd_store_->descriptors(), kDescriptors);
  EXPECT_EQ(fd_store_->models_not_kept(), 0u);
}

TEST_F(FdStoreTest, what_could_not_be_sent_is_given_again) {
  fd_store_->keep(models_);  // nobody listens yet
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  std::vector<std::string> sent;
  while (sent.empty() && std::chrono::steady_clock::now() < until) {
    ::poll(nullptr, 0, 2);
    if (!systemd_.valid() && notifier_->has_room(Notifier::kBacklogMax)) listen();
    if (!systemd_.valid()) continue;
    fd_store_->keep(models_);
    sent = told();
  }
  EXPECT_THAT(sent, Contains(given("manifest.0")));
  EXPECT_THAT(sent, Contains(given("extent.0")));
  EXPECT_THAT(sent, Contains(given("record.1")));
  EXPECT_EQ(fd_store_->descriptors(), kDescriptors);
}

}  // namespace
}  // namespace djinn::daemon
