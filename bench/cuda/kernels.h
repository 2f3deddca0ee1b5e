// SPDX-License-Identifier: Apache-2.0

// The kernel of the probes, as PTX: the driver compiles it, so that no compiler of NVIDIA's is
// needed where the probes are built.
#pragma once

namespace djinn::bench::cuda {

// scribble(address, words, rounds): in each round all threads together write the round's number,
// from 1 on, to every 32-bit word; with 0 rounds for ever. Grid and block are what the caller
// wants.
inline constexpr const char* kKernels = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry scribble(.param .u64 address, .param .u64 words, .param .u64 rounds)
{
  .reg .pred %p<4>;
  .reg .b32 %r<8>;
  .reg .b64 %rd<10>;
  ld.param.u64 %rd1, [address];
  ld.param.u64 %rd2, [words];
  ld.param.u64 %rd3, [rounds];
  cvta.to.global.u64 %rd1, %rd1;
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mad.lo.u32 %r4, %r1, %r2, %r3;
  cvt.u64.u32 %rd4, %r4;
  mov.u32 %r5, %nctaid.x;
  mul.lo.u32 %r6, %r5, %r2;
  cvt.u64.u32 %rd5, %r6;
  mov.u64 %rd6, 0;
ROUND:
  add.u64 %rd6, %rd6, 1;
  cvt.u32.u64 %r7, %rd6;
  mov.u64 %rd7, %rd4;
WORD:
  setp.ge.u64 %p1, %rd7, %rd2;
  @%p1 bra DONE;
  shl.b64 %rd8, %rd7, 2;
  add.u64 %rd9, %rd1, %rd8;
  st.volatile.global.u32 [%rd9], %r7;
  add.u64 %rd7, %rd7, %rd5;
  bra WORD;
DONE:
  setp.eq.u64 %p2, %rd3, 0;
  @%p2 bra ROUND;
  setp.lt.u64 %p3, %rd6, %rd3;
  @%p3 bra ROUND;
  ret;
}
)";

}  // namespace djinn::bench::cuda
