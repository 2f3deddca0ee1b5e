#include "libdjinn-client/abi/djinn.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace {

constexpr djinn_connect_options kNowhere{"unix:/nonexistent/djinnd.sock", nullptr, 0, {}};

TEST(Abi, no_daemon_is_an_error_that_says_what_next) {
  djinn_client* client = nullptr;
  djinn_error error;
  EXPECT_EQ(djinn_connect(&kNowhere, &client, &error), DJINN_NOT_FOUND);
  EXPECT_EQ(client, nullptr);
  EXPECT_EQ(error.code, DJINN_NOT_FOUND);
  EXPECT_NE(std::string(error.message).find("djinnd --user"), std::string::npos);
}

TEST(Abi, nobody_needs_the_error) {
  djinn_client* client = nullptr;
  EXPECT_EQ(djinn_connect(&kNowhere, &client, nullptr), DJINN_NOT_FOUND);
}

TEST(Abi, a_long_message_is_cut_between_characters_and_terminated) {
  std::string host;
  while (host.size() < 2000) host += "ä";
  for (const std::string& name : {host, "x" + host}) {
    const djinn_connect_options options{name.c_str(), nullptr, 0, {}};
    djinn_client* client = nullptr;
    djinn_error error;
    std::memset(&error, 0xff, sizeof error);
    EXPECT_EQ(djinn_connect(&options, &client, &error), DJINN_INVALID_ARGUMENT);
    const size_t length = ::strnlen(error.message, sizeof error.message);
    ASSERT_LT(length, sizeof error.message);
    EXPECT_GE(length, sizeof error.message - 2);
    EXPECT_EQ(std::string(error.message, length).substr(length - 2), "ä");
  }
}

TEST(Abi, null_where_none_may_be_is_refused) {
  djinn_error error;
  djinn_status status;
  uint64_t model = 0;
  djinn_encoder* encoder = nullptr;
  djinn_generator* generator = nullptr;
  djinn_program* program = nullptr;
  djinn_ref ref{};
  EXPECT_EQ(djinn_connect(nullptr, nullptr, &error), DJINN_INVALID_ARGUMENT);
  EXPECT_EQ(djinn_get_status(nullptr, &status, &error), DJINN_INVALID_ARGUMENT);
  EXPECT_EQ(djinn_model_load(nullptr, "x", &model, &error), DJINN_INVALID_ARGUMENT);
  EXPECT_EQ(djinn_model_close(nullptr, 1, &error), DJINN_INVALID_ARGUMENT);
  EXPECT_EQ(djinn_model_unload(nullptr, 1, &error), DJINN_INVALID_ARGUMENT);
  EXPECT_EQ(djinn_encoder_open(nullptr, "x", &encoder, &error), DJINN_INVALID_ARGUMENT);
  EXPECT_EQ(djinn_encoder_encode(nullptr, nullptr, nullptr, nullptr, &error),
            DJINN_INVALID_ARGUMENT);
  EXPECT_EQ(djinn_generator_open(nullptr, "x", &generator, &error), DJINN_INVALID_ARGUMENT);
  EXPECT_EQ(djinn_program_define(nullptr, "srg 1 \"\"", 0, &program, &error),
            DJINN_INVALID_ARGUMENT);
  EXPECT_EQ(djinn_program_run(nullptr, nullptr, 0, nullptr, 0, nullptr, 0, &error),
            DJINN_INVALID_ARGUMENT);
  EXPECT_EQ(djinn_ref_put(nullptr, "x", 1, &ref, &error), DJINN_INVALID_ARGUMENT);
  EXPECT_STRNE(error.message, "");
}

TEST(Abi, closing_nothing_is_allowed) {
  djinn_close(nullptr);
  djinn_encoder_close(nullptr);
  djinn_generator_close(nullptr);
  djinn_program_close(nullptr);
}

TEST(Abi, codes_have_names) {
  EXPECT_STREQ(djinn_code_name(DJINN_NOT_FOUND), "not_found");
  EXPECT_STREQ(djinn_code_name(static_cast<djinn_code>(777)), "unknown");
}

TEST(Abi, generation_is_greedy_unless_told_otherwise) {
  djinn_generate_options options;
  std::memset(&options, 0xff, sizeof options);
  djinn_generate_options_init(&options);
  EXPECT_EQ(options.greedy, 1);
  EXPECT_EQ(options.stop_tokens, nullptr);
  EXPECT_EQ(options.repetition_penalty, 1.0f);
  EXPECT_EQ(options.reserved[3], 0u);
}

// What the library is made of must not meet another version of it in the same process.
TEST(Abi, the_library_shows_its_functions_and_nothing_else) {
  void* const library = ::dlopen("libdjinn-client.so.1", RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(library, nullptr);
  EXPECT_NE(::dlsym(library, "djinn_connect"), nullptr);
  // djinn::name_of(djinn::ErrorCode), djinn::client::resolve_host(std::string const&)
  EXPECT_EQ(::dlsym(library, "_ZN5djinn7name_ofENS_9ErrorCodeE"), nullptr);
  EXPECT_EQ(::dlsym(library,
                    "_ZN5djinn6client12resolve_hostERKNSt7__cxx1112basic_stringIcSt11char_"
                    "traitsIcESaIcEEE"),
            nullptr);
  ::dlclose(library);
}

TEST(Cpp, an_error_is_an_exception_with_its_code) {
  try {
    djinn::Client client(kNowhere);
    FAIL() << "connected to nothing";
  } catch (const djinn::Error& error) {
    EXPECT_EQ(error.code(), DJINN_NOT_FOUND);
    EXPECT_STRNE(error.what(), "");
  }
}

}  // namespace
