// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/abi/djinn.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "libdjinn-client/testing/fake_daemon.h"

namespace {

using djinn::client::testing::FakeDaemon;

constexpr djinn_connect_options kNowhere{
    "unix:/nonexistent/djinnd.sock", nullptr, 0, 0, nullptr, nullptr, {}};

TEST(Abi, no_daemon_is_an_error_that_says_what_next) {
  djinn_client* client = nullptr;
  djinn_error error;
  EXPECT_EQ(djinn_connect(&kNowhere, &client, &error), DJINN_NOT_FOUND);
  EXPECT_EQ(client, nullptr);
  EXPECT_EQ(error.code, DJINN_NOT_FOUND);
  EXPECT_NE(std::string(error.message).find("djinnd --user"), std::string::npos);
}

TEST(Abi, an_unknown_service_class_is_told_with_those_that_there_are) {
  for (const char* const name : {"realtime", ""}) {
    djinn_connect_options options = kNowhere;
    options.service_class = name;
    djinn_client* client = nullptr;
    djinn_error error;
    EXPECT_EQ(djinn_connect(&options, &client, &error), DJINN_INVALID_ARGUMENT);
    const std::string text = error.message;
    EXPECT_NE(text.find("'" + std::string(name) + "'"), std::string::npos) << text;
    EXPECT_NE(text.find("interactive, normal, batch or idle"), std::string::npos) << text;
  }
}

TEST(Abi, nobody_needs_the_error) {
  djinn_client* client = nullptr;
  EXPECT_EQ(djinn_connect(&kNowhere, &client, nullptr), DJINN_NOT_FOUND);
}

TEST(Abi, a_long_message_is_cut_between_characters_and_terminated) {
  std::string host;
  while (host.size() < 2000) host += "ä";
  for (const std::string& name : {host, "x" + host}) {
    const djinn_connect_options options{name.c_str(), nullptr, 0, 0, nullptr, nullptr, {}};
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
  EXPECT_STREQ(error.message, "out is NULL, and must not be.");
  EXPECT_EQ(djinn_get_status(nullptr, &status, &error), DJINN_INVALID_ARGUMENT);
  EXPECT_EQ(djinn_reconnect(nullptr, 0, &error), DJINN_INVALID_ARGUMENT);
  EXPECT_EQ(djinn_model_load(nullptr, "x", &model, &error), DJINN_INVALID_ARGUMENT);
  EXPECT_EQ(djinn_model_load_pinned(nullptr, "x", &model, &error), DJINN_INVALID_ARGUMENT);
  EXPECT_EQ(djinn_model_load_keep_alive(nullptr, "x", 0, &model, &error), DJINN_INVALID_ARGUMENT);
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

TEST(Abi, what_returns_no_code_makes_do_without_what_it_is_of) {
  EXPECT_EQ(djinn_encoder_get_info(nullptr).rows_max, 0u);
  EXPECT_EQ(djinn_generator_get_info(nullptr).tokens_max, 0u);
  djinn_generate_options_init(nullptr);
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
  EXPECT_EQ(options.reserved[2], 0u);
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

// --- when djinnd goes and comes back

// A client in C of a fake daemon, and one handle of each kind that needs no model of its own.
class Reconnecting : public ::testing::Test {
 protected:
  explicit Reconnecting(uint64_t wait_ms = 20'000) {
    options_.reconnect_wait_ms = wait_ms;
    host_ = daemon_.host();
    options_.host = host_.c_str();
    EXPECT_EQ(djinn_connect(&options_, &client_, nullptr), DJINN_OK);
    directory_ = std::filesystem::path(daemon_.directory()) / "model";
    std::filesystem::create_directory(directory_);
    write("config.json", "{}");
    write("model.safetensors", "");
  }
  ~Reconnecting() override { djinn_close(client_); }

  struct Handles {
    uint64_t model = 0;
    djinn_ref ref{};
    djinn_program* program = nullptr;
  };

  djinn_code open(Handles& out) {
    djinn_error error;
    const std::string directory = directory_.string();
    if (djinn_model_load(client_, directory.c_str(), &out.model, &error) != DJINN_OK ||
        djinn_ref_put(client_, "x", 1, &out.ref, &error) != DJINN_OK ||
        djinn_program_define(client_, "srg 1 \"\"", out.model, &out.program, &error) != DJINN_OK) {
      ADD_FAILURE() << error.message;
    }
    return error.code;
  }

  // Every use of them; each must end so.
  void expect_all(const Handles& handles, djinn_code code) {
    djinn_error error;
    char byte = 0;
    EXPECT_EQ(djinn_ref_read(client_, handles.ref, 0, &byte, 1, &error), code) << error.message;
    EXPECT_EQ(djinn_program_run(handles.program, nullptr, 0, nullptr, 0, nullptr, 0, &error), code)
        << error.message;
    djinn_program* program = nullptr;
    EXPECT_EQ(djinn_program_define(client_, "srg 1 \"\"", handles.model, &program, &error), code)
        << error.message;
    djinn_program_close(program);
  }
  void close(const Handles& handles, djinn_code code) {
    EXPECT_EQ(djinn_ref_release(client_, handles.ref, nullptr), code);
    EXPECT_EQ(djinn_model_close(client_, handles.model, nullptr), code);
    djinn_program_close(handles.program);
  }

  FakeDaemon daemon_;
  std::string host_;
  djinn_connect_options options_{};
  djinn_client* client_ = nullptr;
  std::filesystem::path directory_;

 private:
  void write(const char* name, std::string_view text) {
    const int file = ::open((directory_ / name).c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    EXPECT_EQ(::write(file, text.data(), text.size()), static_cast<ssize_t>(text.size()));
    ::close(file);
  }
};
class ForeverReconnecting : public Reconnecting {
 protected:
  ForeverReconnecting() : Reconnecting(DJINN_FOREVER) {}
};
class NeverReconnecting : public Reconnecting {
 protected:
  NeverReconnecting() : Reconnecting(DJINN_NEVER) {}
};

TEST_F(Reconnecting, handles_of_a_session_that_is_gone_say_so_and_new_ones_work) {
  Handles old;
  open(old);
  expect_all(old, DJINN_OK);
  daemon_.stop();
  expect_all(old, DJINN_DISCONNECTED);
  daemon_.start();
  expect_all(old, DJINN_DISCONNECTED);  // naming a handle connects to nobody
  EXPECT_EQ(daemon_.sessions_open(), 0u);
  djinn_status status;
  ASSERT_EQ(djinn_get_status(client_, &status, nullptr), DJINN_OK);
  EXPECT_EQ(status.sessions, 2u);
  expect_all(old, DJINN_DISCONNECTED);
  Handles fresh;
  open(fresh);
  // The fake gives every model the same id, as djinnd does with one that it has kept.
  EXPECT_EQ(fresh.model, old.model);
  expect_all(fresh, DJINN_OK);
  djinn_error error;
  char byte = 0;
  EXPECT_EQ(djinn_ref_read(client_, old.ref, 0, &byte, 1, &error), DJINN_DISCONNECTED);
  EXPECT_NE(std::string(error.message).find("a session that is gone"), std::string::npos);
  const djinn_input input{"x", nullptr, 0, old.ref};
  EXPECT_EQ(djinn_program_run(fresh.program, nullptr, 0, &input, 1, nullptr, 0, nullptr),
            DJINN_DISCONNECTED);
  EXPECT_EQ(djinn_ref_release(client_, old.ref, nullptr), DJINN_DISCONNECTED);
  djinn_program_close(old.program);
  const size_t closes = daemon_.closes();
  close(fresh, DJINN_OK);
  EXPECT_EQ(daemon_.closes(), closes + 1);
}

// Each pointer of each function that must not be NULL, once alone.
TEST_F(Reconnecting, null_is_refused_in_every_place_where_none_may_be) {
  Handles handles;
  open(handles);
  djinn_error error;
  const std::string directory = directory_.string();
  const char* const path = directory.c_str();
  const auto refused = [&](djinn_code code) {
    return code == DJINN_INVALID_ARGUMENT &&
           std::string(error.message).find("NULL") != std::string::npos;
  };
  uint64_t model = 0;
  djinn_encoder* encoder = nullptr;
  djinn_generator* generator = nullptr;
  djinn_program* program = nullptr;
  djinn_ref ref{};
  char byte = 0;
  EXPECT_TRUE(refused(djinn_get_status(client_, nullptr, &error)));
  EXPECT_TRUE(refused(djinn_model_load(client_, nullptr, &model, &error)));
  EXPECT_TRUE(refused(djinn_model_load(client_, path, nullptr, &error)));
  EXPECT_TRUE(refused(djinn_model_load_pinned(client_, nullptr, &model, &error)));
  EXPECT_TRUE(refused(djinn_model_load_pinned(client_, path, nullptr, &error)));
  EXPECT_TRUE(refused(djinn_model_load_keep_alive(client_, nullptr, 0, &model, &error)));
  EXPECT_TRUE(refused(djinn_model_load_keep_alive(client_, path, 0, nullptr, &error)));
  EXPECT_TRUE(refused(djinn_encoder_open(client_, nullptr, &encoder, &error)));
  EXPECT_TRUE(refused(djinn_encoder_open(client_, path, nullptr, &error)));
  EXPECT_TRUE(refused(djinn_generator_open(client_, nullptr, &generator, &error)));
  EXPECT_TRUE(refused(djinn_generator_open(client_, path, nullptr, &error)));
  EXPECT_TRUE(refused(djinn_ref_put(client_, nullptr, 1, &ref, &error)));
  EXPECT_TRUE(refused(djinn_ref_put(client_, "x", 1, nullptr, &error)));
  EXPECT_TRUE(refused(djinn_ref_read(client_, handles.ref, 0, nullptr, 1, &error)));
  EXPECT_TRUE(refused(djinn_program_define(client_, nullptr, 0, &program, &error)));
  EXPECT_TRUE(refused(djinn_program_define(client_, "srg 1 \"\"", 0, nullptr, &error)));
  const auto run = [&](const djinn_symbol* symbols, size_t symbol_count, const djinn_input* inputs,
                       size_t input_count, djinn_output* outputs, size_t output_count) {
    return refused(djinn_program_run(handles.program, symbols, symbol_count, inputs, input_count,
                                     outputs, output_count, &error));
  };
  EXPECT_TRUE(run(nullptr, 1, nullptr, 0, nullptr, 0));
  EXPECT_TRUE(run(nullptr, 0, nullptr, 1, nullptr, 0));
  EXPECT_TRUE(run(nullptr, 0, nullptr, 0, nullptr, 1));
  const djinn_symbol symbol{};
  const djinn_input nameless{};
  const djinn_input empty{"x", nullptr, 1, {}};
  djinn_output output{};
  EXPECT_TRUE(run(&symbol, 1, nullptr, 0, nullptr, 0));
  EXPECT_TRUE(run(nullptr, 0, &nameless, 1, nullptr, 0));
  EXPECT_TRUE(run(nullptr, 0, &empty, 1, nullptr, 0));
  EXPECT_TRUE(run(nullptr, 0, nullptr, 0, &output, 1));
  EXPECT_EQ(djinn_ref_read(client_, handles.ref, 0, &byte, 1, &error), DJINN_OK) << error.message;
  close(handles, DJINN_OK);
}

TEST_F(Reconnecting, what_is_reserved_must_be_zero) {
  djinn_connect_options options = options_;
  options.reserved[0] = 1;
  djinn_client* client = nullptr;
  djinn_error error;
  EXPECT_EQ(djinn_connect(&options, &client, &error), DJINN_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error.message).find("reserved must be zero"), std::string::npos);
  EXPECT_EQ(client, nullptr);
}

// What the outputs hold, and how long they are, would be anybody's guess.
TEST_F(Reconnecting, an_output_that_is_named_twice_is_refused) {
  constexpr const char* kText =
      "srg 1 \"copy\"\ninput %x : float32[2]\n%y = aten::clone(%x)\noutput %y\n";
  djinn_program* program = nullptr;
  djinn_error error;
  ASSERT_EQ(djinn_program_define(client_, kText, 0, &program, &error), DJINN_OK) << error.message;
  float x[2] = {1, 2};
  float y[2] = {};
  const djinn_input input{"x", x, sizeof x, {}};
  djinn_output outputs[2] = {};
  outputs[0].name = outputs[1].name = "y";
  outputs[0].data = y;
  outputs[0].data_bytes = sizeof y;
  EXPECT_EQ(djinn_program_run(program, nullptr, 0, &input, 1, outputs, 2, &error),
            DJINN_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error.message).find("named twice"), std::string::npos);
  EXPECT_EQ(djinn_program_run(program, nullptr, 0, &input, 1, outputs, 1, &error), DJINN_OK)
      << error.message;
  djinn_program_close(program);
}

TEST_F(Reconnecting, what_was_opened_on_a_client_that_is_closed_says_so_and_is_closed_as_ever) {
  Handles old;
  open(old);
  djinn_close(std::exchange(client_, nullptr));
  djinn_error error;
  EXPECT_EQ(djinn_program_run(old.program, nullptr, 0, nullptr, 0, nullptr, 0, &error),
            DJINN_DISCONNECTED);
  EXPECT_NE(std::string(error.message).find("is closed"), std::string::npos);
  djinn_program_close(old.program);
}

TEST_F(Reconnecting, a_symbol_that_is_not_given_is_named) {
  djinn_program* program = nullptr;
  djinn_error error;
  ASSERT_EQ(djinn_program_define(client_, "srg 1 \"\"\nsymbol n 0..4\n", 0, &program, &error),
            DJINN_OK)
      << error.message;
  EXPECT_EQ(djinn_program_run(program, nullptr, 0, nullptr, 0, nullptr, 0, &error),
            DJINN_INVALID_ARGUMENT);
  EXPECT_STREQ(error.message, "Symbol 'n' was not given.");
  djinn_program_close(program);
}

TEST_F(Reconnecting, nothing_of_an_old_session_is_closed_in_the_new_one) {
  Handles old;
  open(old);
  daemon_.stop();
  daemon_.start();
  ASSERT_EQ(djinn_reconnect(client_, 0, nullptr), DJINN_OK);
  close(old, DJINN_DISCONNECTED);
  EXPECT_EQ(daemon_.closes(), 0u);
  EXPECT_EQ(daemon_.runs(), 1u) << "the put of the first session, and no release";
}

TEST_F(Reconnecting, a_call_under_way_fails_and_is_not_repeated) {
  daemon_.set_stuck(true);
  djinn_error error{};
  djinn_ref ref{};
  std::thread caller([&] { djinn_ref_put(client_, "x", 1, &ref, &error); });
  EXPECT_TRUE(djinn::client::testing::eventually([&] { return daemon_.run_waits(); }));
  daemon_.stop();
  caller.join();
  EXPECT_EQ(error.code, DJINN_DISCONNECTED);
  EXPECT_EQ(ref.generation, 0u);
  daemon_.set_stuck(false);
  daemon_.start();
  ASSERT_EQ(djinn_reconnect(client_, 0, nullptr), DJINN_OK);
  EXPECT_EQ(daemon_.runs(), 0u);
}

TEST_F(Reconnecting, a_ref_that_is_all_zero_is_no_ref) {
  djinn_error error{};
  char byte = 0;
  EXPECT_EQ(djinn_ref_read(client_, {}, 0, &byte, 1, &error), DJINN_NOT_FOUND);
  EXPECT_EQ(djinn_ref_release(client_, {}, &error), DJINN_NOT_FOUND);
  EXPECT_STREQ(error.message,
               "The ref's generation is 0, which is no ref's. Give one that a put or a run left.");
}

// --- djinn_cancel()

using djinn::client::testing::eventually;

class Cancelling : public Reconnecting {
 protected:
  // A call that waits in a thread of its own until it is cancelled; gives how it ended.
  djinn_code cancelled(const std::function<djinn_code()>& call,
                       const std::function<bool()>& waits) {
    djinn_code code = DJINN_OK;
    std::thread caller([&] { code = call(); });
    EXPECT_TRUE(eventually(waits));
    djinn_cancel(client_);
    caller.join();
    return code;
  }
  djinn_code put() {
    djinn_ref ref{};
    return djinn_ref_put(client_, "x", 1, &ref, nullptr);
  }
};

TEST_F(Cancelling, a_run_ends_and_the_client_goes_on) {
  daemon_.set_stuck(true);
  EXPECT_EQ(cancelled([&] { return put(); }, [&] { return daemon_.run_waits(); }), DJINN_CANCELLED);
  daemon_.set_stuck(false);
  EXPECT_EQ(put(), DJINN_OK);
  EXPECT_EQ(daemon_.sessions_made(), 1u);
}

djinn_client* interrupted = nullptr;

TEST_F(Cancelling, a_signal_handler_may_do_it) {
  interrupted = client_;
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = [](int) { djinn_cancel(interrupted); };
  ASSERT_EQ(::sigaction(SIGUSR1, &action, &before), 0);
  daemon_.set_stuck(true);
  djinn_code code = DJINN_OK;
  std::thread caller([&] { code = put(); });
  EXPECT_TRUE(eventually([&] { return daemon_.run_waits(); }));
  EXPECT_EQ(::pthread_kill(caller.native_handle(), SIGUSR1), 0);
  caller.join();
  EXPECT_EQ(code, DJINN_CANCELLED);
  ::sigaction(SIGUSR1, &before, nullptr);
}

TEST_F(Cancelling, an_open_ends_and_what_it_gave_is_given_back_when_it_comes) {
  daemon_.hold_opens(true);
  const std::string directory = directory_.string();
  uint64_t model = 0;
  const auto load = [&] { return djinn_model_load(client_, directory.c_str(), &model, nullptr); };
  EXPECT_EQ(cancelled(load, [&] { return daemon_.opens_held() == 1; }), DJINN_CANCELLED);
  djinn_status status;
  EXPECT_EQ(djinn_get_status(client_, &status, nullptr), DJINN_OK) << "others are answered before";
  daemon_.hold_opens(false);
  EXPECT_TRUE(eventually([&] { return daemon_.opens().size() == 1; }));
  EXPECT_EQ(load(), DJINN_OK);
  EXPECT_TRUE(eventually([&] { return daemon_.closes() == 1; }));
  EXPECT_EQ(djinn_model_close(client_, model, nullptr), DJINN_OK);
  EXPECT_EQ(daemon_.closes(), 2u);
}

TEST_F(Cancelling, so_many_opens_may_be_given_up_and_they_may_again_once_djinnd_has_answered) {
  daemon_.hold_opens(true);
  const std::string directory = directory_.string();
  uint64_t model = 0;
  const auto load = [&] { return djinn_model_load(client_, directory.c_str(), &model, nullptr); };
  size_t held = 0;
  while (held < 32) {
    ++held;
    ASSERT_EQ(cancelled(load, [&] { return daemon_.opens_held() == held; }), DJINN_CANCELLED);
  }
  EXPECT_EQ(load(), DJINN_BUSY);
  daemon_.hold_opens(false);
  EXPECT_TRUE(eventually([&] { return load() == DJINN_OK; }));
  EXPECT_TRUE(eventually([&] {
    djinn_status status;
    EXPECT_EQ(djinn_get_status(client_, &status, nullptr), DJINN_OK);
    return daemon_.closes() == held;
  }));
}

TEST_F(Cancelling, a_wait_for_djinnd_ends) {
  daemon_.stop();
  djinn_code code = DJINN_OK;
  std::atomic<bool> ended = false;
  std::thread caller([&] {
    code = djinn_reconnect(client_, DJINN_FOREVER, nullptr);
    ended = true;
  });
  EXPECT_TRUE(eventually([&] {
    djinn_cancel(client_);  // in vain where it has not begun
    return ended.load();
  }));
  caller.join();
  EXPECT_EQ(code, DJINN_CANCELLED);
}

TEST_F(Cancelling, every_call_ends_while_djinnd_stands_still_and_the_client_goes_on) {
  Handles open_before;
  ASSERT_EQ(open(open_before), DJINN_OK);
  const std::string directory = directory_.string();
  djinn_status status;
  djinn_ref ref{};
  char byte = 0;
  uint64_t model = 0;
  djinn_program* program = nullptr;
  const std::vector<std::function<djinn_code()>> calls{
      [&] { return djinn_get_status(client_, &status, nullptr); },
      [&] { return djinn_model_load(client_, directory.c_str(), &model, nullptr); },
      [&] { return djinn_program_define(client_, "srg 1 \"a\"", 0, &program, nullptr); },
      [&] { return djinn_ref_put(client_, "x", 1, &ref, nullptr); },
      [&] { return djinn_ref_read(client_, open_before.ref, 0, &byte, 1, nullptr); },
      [&] {
        return djinn_program_run(open_before.program, nullptr, 0, nullptr, 0, nullptr, 0, nullptr);
      },
      [&] { return djinn_model_unload(client_, 1, nullptr); },
      [&] { return djinn_model_close(client_, open_before.model, nullptr); }};
  for (size_t i = 0; i < calls.size(); ++i) {
    daemon_.set_paused(true);
    std::atomic<bool> ended = false;
    djinn_code code = DJINN_OK;
    std::thread caller([&] {
      code = calls[i]();
      ended = true;
    });
    EXPECT_TRUE(eventually([&] {
      djinn_cancel(client_);  // in vain where it has not begun
      return ended.load();
    })) << i;
    caller.join();
    EXPECT_EQ(code, DJINN_CANCELLED) << i;
    daemon_.set_paused(false);
    EXPECT_EQ(djinn_get_status(client_, &status, nullptr), DJINN_OK) << i;
    EXPECT_EQ(put(), DJINN_OK) << i;
  }
  EXPECT_EQ(daemon_.sessions_made(), 1u);
  EXPECT_EQ(daemon_.opens().size(), daemon_.closes());
  djinn_program_close(open_before.program);
}

TEST_F(Cancelling, where_there_is_no_call_nothing_is_cancelled) {
  djinn_cancel(nullptr);
  djinn_cancel(client_);
  EXPECT_EQ(put(), DJINN_OK);
  daemon_.set_stuck(true);
  EXPECT_EQ(cancelled([&] { return put(); }, [&] { return daemon_.run_waits(); }), DJINN_CANCELLED);
  daemon_.set_stuck(false);
  EXPECT_EQ(put(), DJINN_OK);
}

TEST_F(ForeverReconnecting, a_client_that_was_told_so_makes_another_session_by_itself) {
  daemon_.stop();
  daemon_.start();
  djinn_status status;
  djinn_error error;
  EXPECT_EQ(djinn_get_status(client_, &status, &error), DJINN_OK) << error.message;
  EXPECT_EQ(daemon_.sessions_made(), 2u);
}

TEST_F(NeverReconnecting, a_client_that_was_told_so_reconnects_only_when_asked) {
  daemon_.stop();
  djinn_status status;
  EXPECT_EQ(djinn_reconnect(client_, 0, nullptr), DJINN_NOT_FOUND);
  daemon_.start();
  EXPECT_EQ(djinn_get_status(client_, &status, nullptr), DJINN_DISCONNECTED);
  EXPECT_EQ(djinn_reconnect(client_, 0, nullptr), DJINN_OK);
  EXPECT_EQ(djinn_reconnect(client_, 0, nullptr), DJINN_OK);
  EXPECT_EQ(djinn_get_status(client_, &status, nullptr), DJINN_OK);
  EXPECT_EQ(daemon_.sessions_made(), 2u);
}

TEST_F(Reconnecting, how_long_a_model_stays_reaches_djinnd) {
  const std::string directory = directory_.string();
  uint64_t model = 0;
  EXPECT_EQ(djinn_model_load(client_, directory.c_str(), &model, nullptr), DJINN_OK);
  EXPECT_EQ(djinn_model_load_pinned(client_, directory.c_str(), &model, nullptr), DJINN_OK);
  for (const uint64_t wanted : {uint64_t{0}, uint64_t{1500}, DJINN_FOREVER}) {
    EXPECT_EQ(djinn_model_load_keep_alive(client_, directory.c_str(), wanted, &model, nullptr),
              DJINN_OK);
  }
  const std::vector<FakeDaemon::Opened> expected{
      {false, {}}, {true, {}}, {false, 0}, {false, 1500}, {false, UINT64_MAX}};
  EXPECT_EQ(daemon_.opens(), expected);
}

TEST_F(Reconnecting, objects_in_cpp_do_likewise) {
  using std::chrono::milliseconds;
  djinn::Client client(options_);
  const auto code_of = [](const auto& action) {
    try {
      action();
    } catch (const djinn::Error& error) {
      return error.code();
    }
    return DJINN_OK;
  };
  djinn::Program program(client, "srg 1 \"\"");
  std::optional<djinn::Ref> ref(std::in_place, client, std::as_bytes(std::span("abc")));
  const auto run = [&] { program.run({}, {}, {}); };
  EXPECT_EQ(code_of(run), DJINN_OK);
  daemon_.stop();
  EXPECT_EQ(code_of(run), DJINN_DISCONNECTED);
  EXPECT_EQ(code_of([&] { client.reconnect(milliseconds(0)); }), DJINN_NOT_FOUND);
  EXPECT_EQ(code_of([&] { client.reconnect(milliseconds(-1)); }), DJINN_INVALID_ARGUMENT);
  daemon_.start();
  client.reconnect(milliseconds::max());
  EXPECT_EQ(code_of(run), DJINN_DISCONNECTED);
  ref.reset();  // of the session that is gone: nothing to release
  program = djinn::Program(client, "srg 1 \"\"");
  EXPECT_EQ(code_of(run), DJINN_OK);
  EXPECT_EQ(client.load_model_pinned(directory_.string()), FakeDaemon::kModel);
  EXPECT_EQ(client.load_model_keep_alive(directory_.string(), milliseconds(5)), FakeDaemon::kModel);
  ASSERT_EQ(daemon_.opens().size(), 2u);
  EXPECT_EQ(daemon_.opens()[1].keep_alive_ms, 5u);
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
