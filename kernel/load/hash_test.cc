// SPDX-License-Identifier: Apache-2.0

#include "kernel/load/hash.h"

#include <gmock/gmock.h>

#include "kernel/load/testing.h"

namespace djinn::load {
namespace {

using testing::bytes_of;
using testing::code_of;

std::string hex(const Digest& digest) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (const std::byte b : digest) {
    out += kDigits[static_cast<size_t>(b >> 4)];
    out += kDigits[static_cast<size_t>(b & std::byte{15})];
  }
  return out;
}

TEST(Hash, sha256_gives_the_standards_example) {  // FIPS 180-2, appendix B.1
  auto hash = Sha256::make();
  ASSERT_TRUE(hash);
  ASSERT_TRUE(hash->update(bytes_of("a")));
  ASSERT_TRUE(hash->update(bytes_of("bc")));
  const auto digest = hash->finish();
  ASSERT_TRUE(digest);
  EXPECT_EQ(hex(*digest), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

struct Model {
  srg::ModelManifest manifest;
  std::vector<std::string> extents;
};

Model small_model() {
  return {{{3000, 100},
           {{"a", DType::kFloat32, {5, 2}, 0, 0, 40}, {"b", DType::kInt8, {100}, 1, 0, 100}}},
          {std::string(3000, 'p'), std::string(100, 'q')}};
}

Result<Digest> digest_of(const Model& model, uint64_t step_bytes = ModelHasher::kStepBytes) {
  std::vector<std::span<const std::byte>> extents;
  for (const std::string& extent : model.extents) extents.push_back(bytes_of(extent));
  DJINN_TRY(ModelHasher hasher, ModelHasher::make(model.manifest, extents));
  for (bool more = true; more;) {
    DJINN_TRY(more, hasher.step(step_bytes));
  }
  return hasher.finish();
}

TEST(Hash, the_step_size_does_not_matter) {
  const auto whole = digest_of(small_model());
  ASSERT_TRUE(whole);
  for (const uint64_t step : {1u, 7u, 100u, 2999u, 3000u, 5000u}) {
    EXPECT_EQ(*digest_of(small_model(), step), *whole);
  }
}

TEST(Hash, every_byte_and_every_field_matters) {
  const Digest original = *digest_of(small_model());
  const auto differs = [&](auto change) {
    Model other = small_model();
    change(other);
    EXPECT_NE(*digest_of(other), original);
  };
  differs([](Model& model) { model.extents[0][2999] = 'x'; });
  differs([](Model& model) { model.extents[1][0] = 'x'; });
  differs([](Model& model) { model.manifest.tensors[0].name = "c"; });
  differs([](Model& model) { model.manifest.tensors[0].dtype = DType::kInt32; });
  differs([](Model& model) { model.manifest.tensors[0].sizes = {2, 5}; });
  differs([](Model& model) { model.manifest.tensors[0].offset = 64; });
  differs([](Model& model) { model.manifest.tensors[0].extent = 1; });
  differs([](Model& model) { model.manifest.tensors.pop_back(); });
}

TEST(Hash, extents_that_are_not_the_manifests_are_refused) {
  Model model = small_model();
  model.extents.pop_back();
  EXPECT_EQ(code_of(digest_of(model)), ErrorCode::kInvalidArgument);
  model.extents.push_back("short");
  EXPECT_EQ(code_of(digest_of(model)), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace djinn::load
