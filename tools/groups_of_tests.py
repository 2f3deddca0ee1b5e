# SPDX-License-Identifier: Apache-2.0
"""Names for tests that belong together and lie in several programs and files: `./dev test NAME`
runs those whose name, or whose program's or file's name, contains one of a group's texts."""

GPU_GROUPS = {
    "cuda_faults": ("cuda_faults", "mover_faults", "any_call_of_the_driver", "test_failures"),
    "cuda_daemon": ("GpusOfDjinnd", "MoverRestarts", "test_gpu_copies", "test_gpu_sessions"),
    "cuda_launches": ("test_eager", "test_interpreter"),
    "cuda_steps": ("a_warm_", "no_step_leaves_its_plan", "all_that_a_lane_does"),
    "cuda_capture": ("test_captures",),
    "cuda_kernels": ("cuda-kernels", "cuda-emulator"),
    "cuda_sass": ("test_sass",),
    "cuda_absent": (
        *("each_way_to_have_n", "without_the_program_for_them", "without_a_program_that_computes"),
        *("without_the_library_of_gpus", "test_where_there_is_no_gpu"),
    ),
}
GROUPS = {
    **GPU_GROUPS,
    "cuda": (
        *("cuda", "pal_conformance", "mover", "NodeFault", "test_refusals", "test_linked"),
        *("test_units", "test_bundle", "test_gpu_probes"),
        *(text for texts in GPU_GROUPS.values() for text in texts),
    ),
}


def texts_of(name: str) -> tuple[str, ...]:
    """The group's; of what names none the text itself."""
    return GROUPS.get(name, (name,))
