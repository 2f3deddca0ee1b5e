// SPDX-License-Identifier: Apache-2.0

// The store of models as clients use it: what is imported is there under its name, for whom it is.
#include <gmock/gmock.h>

#include <filesystem>
#include <string>
#include <vector>

#include "daemon/djinnd/testing/test_daemon.h"

namespace djinn::daemon {
namespace {

using ::testing::HasSubstr;
using testing::TestClient;
using testing::TestDaemon;

class PublishedTest : public ::testing::Test {
 protected:
  static constexpr const char* kAnn = "spiffe://lab/ann";
  static ipc::OpenModel open_by(const std::string& name) {
    ipc::OpenModel open{name};
    open.published = name;
    return open;
  }
  // Adds a model's weights, for an import.
  void add(TestClient& client, char fill = 'a') const {
    const Fd file = testing::model_file(daemon_.directory(), 64, fill);
    client.ask<ipc::Done>(ipc::AddFiles{1, {"model.safetensors"}}, {file.get()});
  }
  ipc::ModelImported import(TestClient& client, const std::string& name, char fill = 'a') const {
    add(client, fill);
    return client.ask<ipc::ModelImported>(ipc::ImportModel{name});
  }
  static std::vector<ipc::PublishedReport> listed(TestClient& client) {
    return client.ask<ipc::PublishedList>(ipc::ListPublished{}).published;
  }
  [[nodiscard]] size_t blobs() const {
    const std::string place = daemon_.directory() + "/state/djinn/store/blobs";
    size_t count = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(place)) {
      count += entry.is_regular_file() ? 1 : 0;
    }
    return count;
  }

  TestDaemon daemon_{std::vector<std::string>{"--gate-socket"}};
};

TEST_F(PublishedTest, what_is_imported_is_listed_and_opens_by_its_name) {
  TestClient client(daemon_);
  client.greet();
  const auto imported = import(client, "one");
  EXPECT_EQ(imported.name, "one:latest");
  const auto all = listed(client);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].name, "one:latest");
  EXPECT_EQ(all[0].readers, "local");
  EXPECT_EQ(all[0].files, 1u);
  EXPECT_EQ(all[0].bytes, imported.bytes);
  EXPECT_EQ(all[0].contents, imported.contents);
  const auto opened = client.ask<ipc::ModelOpened>(open_by("one"));
  EXPECT_FALSE(opened.was_resident);
  const auto again = client.ask<ipc::ModelOpened>(open_by("one:latest"));
  EXPECT_EQ(again.model, opened.model);
  EXPECT_TRUE(again.was_resident);
}

TEST_F(PublishedTest, what_one_may_not_read_is_not_there) {
  TestClient admin(daemon_), principal(daemon_, kAnn);
  admin.greet();
  principal.greet();
  import(admin, "one");
  const auto hidden = principal.ask<ipc::Failed>(open_by("one"));
  const auto absent = principal.ask<ipc::Failed>(open_by("two"));
  EXPECT_EQ(hidden.code, ErrorCode::kNotFound);
  EXPECT_EQ(absent.code, ErrorCode::kNotFound);
  EXPECT_EQ(std::string(hidden.message).replace(hidden.message.find("one"), 3, "two"),
            absent.message);
  EXPECT_TRUE(listed(principal).empty());
}

TEST_F(PublishedTest, a_name_is_given_by_whom_it_belongs_to) {
  TestClient principal(daemon_, kAnn), admin(daemon_);
  principal.greet();
  admin.greet();
  add(principal);
  const auto plain = principal.ask<ipc::Failed>(ipc::ImportModel{"one"});
  EXPECT_EQ(plain.code, ErrorCode::kPermissionDenied);
  EXPECT_THAT(plain.message, HasSubstr("Call it ~spiffe://lab/ann/one:latest"));
  add(principal);
  EXPECT_EQ(principal.ask<ipc::Failed>(ipc::ImportModel{"~spiffe://lab/ben/one"}).code,
            ErrorCode::kPermissionDenied);
  EXPECT_EQ(import(principal, "~spiffe://lab/ann/one").name, "~spiffe://lab/ann/one:latest");
  ASSERT_EQ(listed(principal).size(), 1u);
  EXPECT_EQ(listed(principal)[0].owner, kAnn);
  EXPECT_EQ(listed(principal)[0].readers, "owner");
  EXPECT_EQ(listed(admin).size(), 1u);
  add(admin);
  EXPECT_EQ(admin.ask<ipc::Failed>(ipc::ImportModel{"no name"}).code, ErrorCode::kInvalidArgument);
}

TEST_F(PublishedTest, a_name_is_given_once) {
  TestClient client(daemon_);
  client.greet();
  import(client, "one");
  add(client, 'b');
  EXPECT_EQ(client.ask<ipc::Failed>(ipc::ImportModel{"one"}).code, ErrorCode::kAlreadyExists);
  EXPECT_EQ(blobs(), 1u);
}

TEST_F(PublishedTest, a_user_has_one_import_under_way) {
  TestClient client(daemon_);
  client.greet();
  const Fd file = testing::model_file(daemon_.directory(), 64, 'a');
  for (uint32_t number : {101U, 103U}) {
    client.send({number, ipc::AddFiles{1, {"model.safetensors"}}}, {file.get()});
    client.send({number + 1, ipc::ImportModel{number == 101 ? "one" : "two"}});
  }
  size_t imported = 0, busy = 0;
  for (int answers = 0; answers < 4; ++answers) {
    const auto reply = client.receive();
    ASSERT_TRUE(reply.has_value());
    imported += std::holds_alternative<ipc::ModelImported>(reply->body) ? 1 : 0;
    const auto* const failed = std::get_if<ipc::Failed>(&reply->body);
    busy += failed != nullptr && failed->code == ErrorCode::kBusy ? 1 : 0;
  }
  EXPECT_EQ(imported, 1u);
  EXPECT_EQ(busy, 1u);
}

TEST_F(PublishedTest, an_import_that_fails_leaves_nothing) {
  TestClient client(daemon_);
  client.greet();
  const Fd good = testing::model_file(daemon_.directory(), 64, 'a');
  const std::string path = daemon_.directory() + "/text";
  const Fd bad(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(::write(bad.get(), "no safetensors", 14), 14);
  client.ask<ipc::Done>(ipc::AddFiles{2, {"a.safetensors", "b.safetensors"}},
                        {good.get(), bad.get()});
  const auto failed = client.ask<ipc::Failed>(ipc::ImportModel{"one"});
  EXPECT_EQ(failed.code, ErrorCode::kMalformed) << failed.message;
  EXPECT_TRUE(listed(client).empty());
  EXPECT_TRUE(testing::eventually([&] { return blobs() == 0; }));
  client.ask<ipc::Done>(ipc::AddFiles{1, {"run.sh"}}, {good.get()});
  EXPECT_EQ(client.ask<ipc::Failed>(ipc::ImportModel{"one"}).code, ErrorCode::kInvalidArgument);
}

TEST_F(PublishedTest, a_removed_name_takes_its_bytes_with_it_once_no_model_is_read_from_them) {
  TestClient client(daemon_);
  client.greet();
  import(client, "one");
  import(client, "two", 'b');
  EXPECT_EQ(blobs(), 2u);
  const auto opened = client.ask<ipc::ModelOpened>(open_by("one"));
  client.ask<ipc::Done>(ipc::RemovePublished{"two"});
  EXPECT_TRUE(testing::eventually([&] { return blobs() == 1; }));
  client.ask<ipc::Done>(ipc::RemovePublished{"one"});
  EXPECT_EQ(client.ask<ipc::Failed>(open_by("one")).code, ErrorCode::kNotFound);
  EXPECT_EQ(client.ask<ipc::Failed>(ipc::RemovePublished{"one"}).code, ErrorCode::kNotFound);
  EXPECT_TRUE(listed(client).empty());
  client.ask<ipc::Collected>(ipc::CollectGarbage{});
  client.ask<ipc::PublishedList>(ipc::ListPublished{});
  EXPECT_EQ(blobs(), 1u) << "a model is read from it";
  client.ask<ipc::Done>(ipc::CloseModel{opened.model});
  client.ask<ipc::Done>(ipc::UnloadModel{opened.model});
  EXPECT_TRUE(testing::eventually([&] {
    client.ask<ipc::Collected>(ipc::CollectGarbage{});
    return blobs() == 0;
  }));
}

TEST_F(PublishedTest, an_open_has_files_or_a_name) {
  TestClient client(daemon_);
  client.greet();
  import(client, "one");
  add(client);
  EXPECT_EQ(client.ask<ipc::Failed>(open_by("one")).code, ErrorCode::kInvalidArgument);
  client.ask<ipc::ModelOpened>(open_by("one"));
}

TEST_F(PublishedTest, another_djinnd_of_the_same_place_has_no_store_and_says_so) {
  TestClient client(daemon_);
  client.greet();
  import(client, "one");
  const std::string state = daemon_.directory() + "/state";
  const TestDaemon other;
  TestClient there(other);
  there.greet();
  std::filesystem::create_directories(other.directory() + "/state/djinn");
  std::filesystem::create_directory_symlink(state + "/djinn/store",
                                            other.directory() + "/state/djinn/store");
  EXPECT_EQ(there.ask<ipc::Failed>(ipc::ListPublished{}).code, ErrorCode::kBusy);
}

}  // namespace
}  // namespace djinn::daemon
