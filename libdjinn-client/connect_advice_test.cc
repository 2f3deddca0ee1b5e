// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/connect_advice.h"

#include <gtest/gtest.h>

namespace djinn::client {
namespace {

TEST(ConnectAdvice, a_stopped_service_is_started_by_systemd_and_others_by_their_user) {
  const std::string service = nobody_answers(kServiceSocket, true).message;
  EXPECT_EQ(service,
            "No djinnd answers at /run/djinn/djinnd.sock. Start the service with 'systemctl start "
            "djinnd.socket', as root, or set DJINN_HOST to where it runs.");
  const std::string own = nobody_answers("/run/user/7/djinn/djinnd.sock", false).message;
  EXPECT_NE(own.find("Start one of your own with 'djinnd --user'"), std::string::npos);
}

TEST(ConnectAdvice, a_directory_is_told_from_a_socket_that_nobody_answers_at) {
  EXPECT_EQ(nobody_answers("/tmp", false).message,
            "/tmp is a directory, and no socket of a djinnd. Name the socket in it, as "
            "DJINN_HOST=/tmp/djinnd.sock.");
}

TEST(ConnectAdvice, who_is_outside_of_the_group_is_told_how_to_come_into_it) {
  const Error outside = not_allowed(kServiceSocket, {"bob", "djinn", false});
  EXPECT_EQ(outside.code, ErrorCode::kPermissionDenied);
  EXPECT_EQ(outside.message,
            "You may not connect to djinnd at /run/djinn/djinnd.sock: it is for members of the "
            "group djinn. Have an administrator say 'adduser bob djinn', then log in again.");
  EXPECT_NE(not_allowed(kServiceSocket, {"bob", "djinn", true}).message.find("newgrp djinn"),
            std::string::npos);
  EXPECT_NE(not_allowed("/run/user/7/djinn/djinnd.sock", {"bob", "", false})
                .message.find("it is another user's"),
            std::string::npos);
}

}  // namespace
}  // namespace djinn::client
