// SPDX-License-Identifier: Apache-2.0

#include "daemon/loader/one_load.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <span>
#include <thread>

#include "daemon/store/digest.h"
#include "ipc/codec/control_codec.h"
#include "ipc/codec/srg_codec.h"
#include "ipc/socket.h"
#include "kernel/load/source.h"
#include "kernel/pal/huge_pages.h"
#include "kernel/pal/memfd.h"

namespace djinn::loader {
namespace {

std::string safetensors(const std::string& header, const std::string& data) {
  std::string file;
  for (int shift = 0; shift < 64; shift += 8) {
    file.push_back(static_cast<char>(header.size() >> shift));
  }
  return file + header + data;
}

const std::string kHeader = R"({"w":{"dtype":"U8","shape":[6],"data_offsets":[0,6]}})";

Fd file_of(const std::string& content) {
  std::string path = "/tmp/djinn-loader-test-XXXXXX";
  Fd file(::mkstemp(path.data()));
  ::unlink(path.c_str());
  EXPECT_EQ(::write(file.get(), content.data(), content.size()),
            static_cast<ssize_t>(content.size()));
  return file;
}

// djinnd's side of a load that runs on a thread of this process.
class Loading {
 public:
  Loading() {
    auto pair = *ipc::make_socket_pair();
    djinnd_ = std::make_unique<child::Channel>(std::move(pair.left));
    loader_ = std::make_unique<child::Channel>(std::move(pair.right));
    thread_ = std::thread([this] {
      ended_ = OneLoad(*loader_, clock_, mappings_, {7, true}).run();
    });
  }
  ~Loading() {
    djinnd_.reset();
    thread_.join();
  }

  void send(const ipc::LoaderCommand& command, const std::vector<int>& fds) {
    EXPECT_TRUE(djinnd_->send(ipc::encode(command), fds).ok());
  }
  template <typename Event>
  Event expect() {
    auto message = djinnd_->receive();
    if (!message.ok()) return ADD_FAILURE() << message.error().message, Event{};
    fds_ = std::move(message.value().fds);
    const auto event = ipc::decode_loader_event(message.value().bytes);
    const auto* wanted = event.ok() ? std::get_if<Event>(&event.value().body) : nullptr;
    EXPECT_NE(wanted, nullptr) << "another event";
    return wanted != nullptr ? *wanted : Event{};
  }

  SystemClock clock_;
  const pal::OwnMappings mappings_ = pal::OwnMappings::open();
  std::unique_ptr<child::Channel> djinnd_;
  std::unique_ptr<child::Channel> loader_;
  std::thread thread_;
  Status ended_;
  std::vector<Fd> fds_;
};

class Load : public testing::Test, protected Loading {};

TEST_F(Load, after_the_files_of_a_resident_model_it_takes_others) {
  const Fd file = file_of(safetensors(kHeader, "abcdef"));
  send({ipc::TakeFiles{1, true}}, {file.get()});
  const auto first = expect<ipc::Identified>();
  send({ipc::ReleaseFiles{}}, {});
  const auto ready = expect<ipc::LoaderReady>();
  EXPECT_EQ(ready, (ipc::LoaderReady{7, true}));
  send({ipc::TakeFiles{1, true}}, {file.get()});
  EXPECT_EQ(expect<ipc::Identified>().files, first.files);
  send({ipc::PlanLoad{false}}, {});
  EXPECT_EQ(expect<ipc::Planned>().extent_bytes.size(), 1u);
}

TEST_F(Load, files_are_copied_into_the_store_with_the_digest_of_what_is_there) {
  const std::string weights = safetensors(kHeader, "abcdef");
  const Fd files[] = {file_of(weights), file_of("{}")};
  send({ipc::TakeFiles{2, true}}, {files[0].get(), files[1].get()});
  expect<ipc::Identified>();
  const Fd rooms[] = {file_of(""), file_of("")};
  send({ipc::TakeIn{0, weights.size(), true}}, {rooms[0].get()});
  const auto first = expect<ipc::TakenIn>();
  send({ipc::TakeIn{1, 2, false}}, {rooms[1].get()});
  const auto second = expect<ipc::TakenIn>();
  std::string copied(weights.size() + 1, 0);
  EXPECT_EQ(::pread(rooms[0].get(), copied.data(), copied.size(), 0), std::ssize(weights));
  EXPECT_EQ(copied.substr(0, weights.size()), weights);
  const load::Digest digests[] = {*store::digest_of_file(rooms[0], weights.size()),
                                  *store::digest_of_file(rooms[1], 2)};
  EXPECT_TRUE(std::ranges::equal(digests[0], std::as_bytes(std::span(first.sha256))));
  EXPECT_TRUE(std::ranges::equal(digests[1], std::as_bytes(std::span(second.sha256))));
}

TEST_F(Load, weights_that_are_none_do_not_come_into_the_store) {
  const Fd files[] = {file_of("{}"), file_of("no safetensors")};
  send({ipc::TakeFiles{2, true}}, {files[0].get(), files[1].get()});
  expect<ipc::Identified>();
  const Fd room = file_of("");
  send({ipc::TakeIn{1, 14, true}}, {room.get()});
  const auto failed = expect<ipc::LoadFailed>();
  EXPECT_EQ(failed.code, ErrorCode::kMalformed) << failed.message;
}

TEST_F(Load, a_file_becomes_extents_that_can_be_sealed_while_they_are_hashed) {
  const Fd file = file_of(safetensors(kHeader, "abcdef"));
  send({ipc::TakeFiles{1, true}}, {file.get()});
  const auto identified = expect<ipc::Identified>();
  ASSERT_EQ(identified.files.size(), 1u);
  EXPECT_EQ(identified.files[0].bytes, 8 + kHeader.size() + 6);
  send({ipc::PlanLoad{false}}, {});
  const auto planned = expect<ipc::Planned>();
  ASSERT_EQ(planned.extent_bytes.size(), 1u);
  const Fd extent = *pal::make_memfd("extent", planned.extent_bytes[0], pal::Seals::kSize);
  send({ipc::ReadInto{1}}, {extent.get()});
  EXPECT_GE(expect<ipc::Loaded>().bytes_read, 6u);
  ASSERT_EQ(fds_.size(), 1u);
  const Fd manifest_memfd = std::move(fds_[0]);
  EXPECT_TRUE(pal::add_seals(extent, pal::Seals::kWrite).ok()) << "the loader still writes";
  EXPECT_TRUE(*pal::has_seals(manifest_memfd, pal::Seals::kWrite));
  const auto size = static_cast<uint64_t>(::lseek(manifest_memfd.get(), 0, SEEK_END));
  const auto manifest = *ipc::decode_manifest(*pal::read_memfd(manifest_memfd, size));
  ASSERT_EQ(manifest.tensors.size(), 1u);
  EXPECT_EQ(manifest.tensors[0].name, "w");
  const auto bytes = *pal::read_memfd(extent, manifest.tensors[0].offset + 6);
  EXPECT_EQ(
      std::string(reinterpret_cast<const char*>(bytes.data()) + manifest.tensors[0].offset, 6),
      "abcdef");
  const std::array<uint8_t, 32> none{};
  EXPECT_NE(expect<ipc::Hashed>().sha256, none);
}

// A resident model, as djinnd has it.
struct Resident {
  Fd extent;
  Fd manifest;
};

class Compare : public Load {
 protected:
  static Resident make_resident() {
    Loading first;
    const Fd file = file_of(safetensors(kHeader, "abcdef"));
    first.send({ipc::TakeFiles{1, true}}, {file.get()});
    first.expect<ipc::Identified>();
    first.send({ipc::PlanLoad{false}}, {});
    const auto planned = first.expect<ipc::Planned>();
    Resident made{*pal::make_memfd("extent", planned.extent_bytes[0], pal::Seals::kSize), {}};
    first.send({ipc::ReadInto{1}}, {made.extent.get()});
    first.expect<ipc::Loaded>();
    made.manifest = std::move(first.fds_[0]);
    EXPECT_TRUE(pal::add_seals(made.extent, pal::Seals::kWrite).ok());
    return made;
  }

  bool is_same(const std::string& header, const std::string& data) {
    const Resident resident = make_resident();
    const Fd file = file_of(safetensors(header, data));
    send({ipc::TakeFiles{1, true}}, {file.get()});
    expect<ipc::Identified>();
    send({ipc::PlanLoad{false}}, {});
    expect<ipc::Planned>();
    send({ipc::CompareWith{1, 5}}, {resident.manifest.get(), resident.extent.get()});
    return expect<ipc::Compared>().same;
  }
};

TEST_F(Compare, equal_files_are_those_of_the_model) {
  EXPECT_TRUE(is_same(kHeader, "abcdef"));
}
TEST_F(Compare, one_other_byte_makes_another_model) {
  EXPECT_FALSE(is_same(kHeader, "abcdeg"));
}
TEST_F(Compare, equal_bytes_under_another_name_are_another_model) {
  EXPECT_FALSE(is_same(R"({"v":{"dtype":"U8","shape":[6],"data_offsets":[0,6]}})", "abcdef"));
}

TEST_F(Load, a_malformed_file_is_an_error_with_a_code) {
  const Fd file = file_of(safetensors("{\"w\":", ""));
  send({ipc::TakeFiles{1, true}}, {file.get()});
  expect<ipc::Identified>();
  send({ipc::PlanLoad{false}}, {});
  EXPECT_EQ(expect<ipc::LoadFailed>().code, ErrorCode::kMalformed);
}

TEST_F(Load, once_many_descriptors_of_one_large_header_are_refused_by_their_sum) {
  const std::string spaces(load::kHeadersBytesMax / 2 - kHeader.size(), ' ');
  const Fd file = file_of(safetensors(kHeader + spaces, "abcdef"));
  send({ipc::TakeFiles{3, true}}, {file.get(), file.get(), file.get()});
  expect<ipc::Identified>();
  send({ipc::PlanLoad{false}}, {});
  EXPECT_EQ(expect<ipc::LoadFailed>().code, ErrorCode::kLimitExceeded);
}

TEST_F(Load, a_descriptor_that_is_no_file_is_refused_before_anything_is_read) {
  const Fd directory(::open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  send({ipc::TakeFiles{1, true}}, {directory.get()});
  EXPECT_EQ(expect<ipc::LoadFailed>().code, ErrorCode::kInvalidArgument);
}

TEST_F(Load, a_command_out_of_turn_ends_the_load) {
  send({ipc::PlanLoad{false}}, {});
  EXPECT_EQ(expect<ipc::LoadFailed>().code, ErrorCode::kInternal);
}

}  // namespace
}  // namespace djinn::loader
