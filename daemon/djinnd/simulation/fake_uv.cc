// SPDX-License-Identifier: Apache-2.0

// These are the functions of libuv that djinnd's loop calls, for a simulated machine. They take the
// place of the library's, and keep to its header.
#include <poll.h>
#include <uv.h>

#include "daemon/djinnd/simulation/machine.h"
#include "kernel/base/assert.h"

using djinn::daemon::simulation::Machine;

extern "C" {

int uv_loop_init(uv_loop_t* /*loop*/) {
  return 0;
}

int uv_loop_close(uv_loop_t* /*loop*/) {
  return 0;
}

// Machine::step() makes events happen, so this call only closes handles, as a loop that ends needs.
int uv_run(uv_loop_t* /*loop*/, uv_run_mode mode) {
  DJINN_ASSERT(mode == UV_RUN_NOWAIT);
  Machine::current().close_handles();
  return 0;
}

void uv_stop(uv_loop_t* loop) {
  Machine::current().stop(loop);
}

void uv_update_time(uv_loop_t* /*loop*/) {}

void uv_close(uv_handle_t* handle, uv_close_cb closed) {
  Machine::current().close(handle, closed);
}

void uv_unref(uv_handle_t* /*handle*/) {}

// djinnd asks this of timers alone.
int uv_is_active(const uv_handle_t* handle) {
  return Machine::current().is_armed(reinterpret_cast<const uv_timer_t*>(handle)) ? 1 : 0;
}

int uv_async_init(uv_loop_t* /*loop*/, uv_async_t* handle, uv_async_cb call) {
  Machine::current().add(handle, call);
  return 0;
}

int uv_async_send(uv_async_t* handle) {
  Machine::current().ring(handle);
  return 0;
}

int uv_poll_init(uv_loop_t* /*loop*/, uv_poll_t* handle, int fd) {
  handle->u.fd = fd;
  return 0;
}

int uv_poll_start(uv_poll_t* handle, int events, uv_poll_cb call) {
  const int readable = (events & UV_READABLE) != 0 ? POLLIN : 0;
  const int writable = (events & UV_WRITABLE) != 0 ? POLLOUT : 0;
  Machine::current().watch(handle, handle->u.fd, static_cast<short>(readable | writable), call);
  return 0;
}

int uv_poll_stop(uv_poll_t* handle) {
  Machine::current().unwatch(handle);
  return 0;
}

int uv_timer_init(uv_loop_t* loop, uv_timer_t* handle) {
  handle->loop = loop;
  return 0;
}

int uv_timer_start(uv_timer_t* handle, uv_timer_cb call, uint64_t after_ms, uint64_t repeat_ms) {
  DJINN_ASSERT(repeat_ms == 0);
  Machine::current().arm(handle, after_ms, call);
  return 0;
}

int uv_timer_stop(uv_timer_t* handle) {
  Machine::current().disarm(handle);
  return 0;
}

int uv_check_init(uv_loop_t* /*loop*/, uv_check_t* /*handle*/) {
  return 0;
}

int uv_check_start(uv_check_t* handle, uv_check_cb call) {
  Machine::current().add(handle, call);
  return 0;
}

// The machine sends no signals.
int uv_signal_init(uv_loop_t* /*loop*/, uv_signal_t* /*handle*/) {
  return 0;
}

int uv_signal_start(uv_signal_t* /*handle*/, uv_signal_cb /*call*/, int /*number*/) {
  return 0;
}

}  // extern "C"
