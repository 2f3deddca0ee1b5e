// SPDX-License-Identifier: Apache-2.0

#include "ipc/codec/kept_codec.h"

#include <gtest/gtest.h>

#include "ipc/limits.h"

namespace djinn::ipc {
namespace {

KeptModel model() {
  KeptModel model;
  model.boot = "3c2e";
  model.id = {0xabc};
  model.domain = 1000;
  model.label = "tiny";
  model.plan_hash.fill(7);
  model.files = {{8, 1, 42, 4096, 5, 6, true, {}}, {0, 3, 9, 64, 7, 8, false, {}}};
  model.files[1].content.emplace().fill(9);
  model.read_at_ns = 123;
  model.extent_bytes = {1 << 20, 4096};
  model.pinned_by = {1000, 1001};
  model.sha256.emplace().fill(3);
  model.loaded_wall_ns = 456;
  model.has_plan = true;
  model.keep_alives = {{1000, 789}, {1001, {}}};
  model.path = "/srv/models/one";
  model.names = {{1001, "one", "/srv/ann/one"}};
  model.huge_bytes = 1 << 19;
  model.numerics = {{1000, srg::Numerics::kExact}, {1001, srg::Numerics::kFastOnly}};
  return model;
}

TEST(KeptCodec, a_model_comes_back_as_it_was) {
  KeptModel one = model();
  EXPECT_EQ(decode_kept_model(encode(one)).value(), one);
  one.sha256.reset();
  one.files.clear();
  EXPECT_EQ(decode_kept_model(encode(one)).value(), one);
}

TEST(KeptCodec, the_largest_fits_a_message) {
  KeptModel large = model();
  large.label.assign(limits::kNameBytes, 'x');
  large.files.assign(limits::kModelFiles, model().files[1]);
  large.extent_bytes.assign(limits::kModelExtents, uint64_t{1} << 40);
  large.pinned_by.assign(limits::kModelUsers, 1000);
  large.keep_alives.assign(limits::kModelUsers, {1000, 789});
  large.path.assign(limits::kNameBytes, 'p');
  large.numerics.assign(limits::kModelUsers, {1000, srg::Numerics::kFastOnly});
  large.names.assign(limits::kModelNamesKept, {1001, large.label, large.path});
  EXPECT_EQ(decode_kept_model(encode(large)).value(), large);
  EXPECT_LE(encode(large).size(), limits::kControlMessageBytes);
  KeptModel of_nobody = large;
  of_nobody.pinned_by.clear();
  of_nobody.keep_alives.clear();
  of_nobody.numerics.clear();
  EXPECT_EQ((encode(large).size() - encode(of_nobody).size()) / 1024, 12u) << "see ipc/limits.h";
  large.files.push_back(model().files[0]);
  EXPECT_EQ(decode_kept_model(encode(large)).error().code, ErrorCode::kLimitExceeded);
}

TEST(KeptCodec, another_format_and_changed_bytes_are_refused_or_decoded_and_never_more) {
  std::vector<std::byte> bytes = encode(model());
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (const auto bit : {std::byte{1}, std::byte{0x80}}) {
      bytes[i] ^= bit;
      const auto read = decode_kept_model(bytes);
      if (read.ok()) {
        EXPECT_LE(read.value().files.size(), limits::kModelFiles);
      }
      bytes[i] ^= bit;
    }
    EXPECT_FALSE(decode_kept_model(std::span(bytes).first(i)).ok());
  }
}

}  // namespace
}  // namespace djinn::ipc
