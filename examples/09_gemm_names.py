"""Read the name of a matrix kernel (guide 002: sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x16_…).

It tells the architecture, the operands' types, the layout, the tile and the pipeline's stages. But `xmma`
does not mean tensor cores, as the guide has it: `ff` or `ffma` in a name is the ordinary multiply-add of
float32, and TF32 is off by default. On a GPU the kernels of three kinds of matmul are read too, else those
of a recorded BERT. Look at the column "tensor cores".
"""

import torch

import opscope
from opscope.cli import main as command_line

GUIDE = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x16_stage3_warpsize2x2x1_ff_main_v1"
COLUMNS = ("architecture", "operand_type", "layout", "tile", "stages", "tensor_core")


def say_matrix_kernels(title: str, session: opscope.Session) -> None:
    for kernel in opscope.summarize(session).kernels:
        if kernel.facts is not None and kernel.facts.category == "matrix":
            values = [str(kernel.facts.fields.get(column, "–")) for column in COLUMNS]
            print(f"{title:10}" + "".join(f"{value:13}" for value in values) + kernel.name[:24] + "…")


def main() -> None:
    command_line(["explain", GUIDE])
    print(
        "\n          " + "".join(f"{column.replace('tensor_core', 'tensor cores'):13}" for column in COLUMNS)
    )
    if not torch.cuda.is_available():
        with opscope.load(opscope.example_trace()) as session:
            say_matrix_kernels("recorded", session)
        return
    for title, dtype, precision in (
        ("float32", torch.float32, "highest"),
        ("TF32", torch.float32, "high"),
        ("bfloat16", torch.bfloat16, "highest"),
    ):
        torch.set_float32_matmul_precision(precision)
        for size in (512, 4096):
            x = torch.randn(size, size, device="cuda", dtype=dtype)
            _, session = opscope.profile_call(torch.mm, x, x)
            with session:
                say_matrix_kernels(title, session)


if __name__ == "__main__":
    main()
