// SPDX-License-Identifier: Apache-2.0

// Calls that the fuzzer of operators has found, as it printed them: each ended the process, or gave
// memory that nobody wrote. Beside each stands a call that differs in what is wrong alone.
#include <gtest/gtest.h>

#include <cmath>

#include "kernel/exec/executor_for_tests.h"
#include "kernel/srg/text.h"

namespace djinn::exec {
namespace {

class HostileCalls : public ::testing::Test {
 protected:
  // Of a graph that is run on one number.
  ErrorCode code(const std::string& lines, double number = 0) {
    auto graph = srg::parse_text("srg 1 \"\"\n" + lines);
    DJINN_ASSERT(graph);
    const size_t inputs = graph->storages.size();
    Outcome<void> ended = world.admit(*std::move(graph));
    if (ended) ended = world.run({}, std::vector<at::Tensor>(inputs, at::full({65536}, number)));
    error = message_of(ended);
    return code_of(ended);
  }

  World world{{}};
  std::string error;
};

TEST_F(HostileCalls, numbers_alone_are_not_reduced) {
  EXPECT_EQ(code("%r = aten::sum(self=1.0)\noutput %r"), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code("%r = aten::logsumexp(self=2.0, dim=[])\noutput %r"), ErrorCode::kInvalidArgument);
  const std::string x = "input %x \"s\" : float32[5]\n";
  EXPECT_EQ(code(x + "%r = aten::add.Tensor(self=1.0, other=%x)\noutput %r"), ErrorCode::kOk)
      << error;
}

TEST_F(HostileCalls, a_median_is_of_elements_that_there_are) {
  const auto median = [&](const std::string& op, const std::string& strides) {
    return code("input %x \"s\" : float32[3, 5] strides " + strides + "\n%r, %i = " + op +
                "(self=%x, dim=1)\noutput %r, %i");
  };
  for (const char* op : {"aten::median.dim", "aten::nanmedian.dim"}) {
    EXPECT_EQ(median(op, "[0, 1]"), ErrorCode::kOk) << error;
    EXPECT_EQ(median(op, "[5, 0]"), ErrorCode::kInvalidArgument) << op;
  }
}

TEST_F(HostileCalls, distances_are_those_of_a_matrix) {
  const auto distances = [&](const std::string& sizes) {
    return code("input %x \"s\" : float32" + sizes +
                "\n%r = aten::_pdist_forward(self=%x)\noutput %r");
  };
  EXPECT_EQ(distances("[4, 3]"), ErrorCode::kOk) << error;
  EXPECT_EQ(distances("[4, 0]"), ErrorCode::kOk) << error;
  EXPECT_EQ(distances("[4, 1, 0, 2]"), ErrorCode::kInvalidArgument);
}

TEST_F(HostileCalls, distances_are_between_points_of_one_space) {
  const auto back = [&](const std::string& coordinates) {
    return code("input %d \"d\" : float32[6, 6]\ninput %b \"b\" : float32[6, " + coordinates +
                "]\n%r = aten::_cdist_backward(grad=%d, x1=%d, x2=%b, p=3.0, cdist=%d)\noutput %r");
  };
  EXPECT_EQ(back("6"), ErrorCode::kOk) << error;
  EXPECT_EQ(back("5"), ErrorCode::kInvalidArgument);
}

TEST_F(HostileCalls, a_scale_is_that_of_the_sizes) {
  const auto scaled = [&](const std::string& op, const std::string& scale) {
    return code("input %x \"s\" : float32[2, 7, 2, 6]\n%r = " + op +
                "(self=%x, output_size=[6, 3], align_corners=false, scales_h=" + scale +
                ")\noutput %r");
  };
  for (const char* op : {"aten::_upsample_bicubic2d_aa", "aten::_upsample_bilinear2d_aa"}) {
    EXPECT_EQ(scaled(op, "3.0"), ErrorCode::kOk) << error;
    EXPECT_EQ(scaled(op, "1.0"), ErrorCode::kInvalidArgument) << op;
    for (const char* unsaid : {"nan", "0.0", "-1.0"}) {
      EXPECT_EQ(scaled(op, unsaid), ErrorCode::kOk) << op << ": " << error;
    }
  }
  const auto back = [&](const std::string& scale) {
    return code(
        "input %x \"s\" : float32[2, 7, 6, 3]\n"
        "%r = aten::_upsample_bilinear2d_aa_backward(grad_output=%x, output_size=[6, 3], "
        "input_size=[2, 7, 2, 6], align_corners=false, scales_h=" +
        scale + ")\noutput %r");
  };
  EXPECT_EQ(back("3.0"), ErrorCode::kOk) << error;
  EXPECT_EQ(back("-1.0"), ErrorCode::kOk) << error;
  EXPECT_EQ(back("1.0"), ErrorCode::kInvalidArgument);
}

TEST_F(HostileCalls, a_scale_leads_to_an_element) {
  const auto scaled = [&](const std::string& call, const std::string& scale) {
    return code("input %x \"s\" : float32[3, 16, 8]\ninput %y \"t\" : float32[3, 16, 8, 1]\n%r = " +
                call + scale + ")\noutput %r");
  };
  for (const char* call :
       {"aten::_upsample_nearest_exact1d(self=%x, output_size=[8], scales=",
        "aten::upsample_bilinear2d(self=%y, output_size=[8, 8], align_corners=false, scales_w="}) {
    EXPECT_EQ(scaled(call, "1.0"), ErrorCode::kOk) << error;
    EXPECT_EQ(scaled(call, "-1.0"), ErrorCode::kOk) << error;
    EXPECT_EQ(scaled(call, "1e-300"), ErrorCode::kInvalidArgument) << call;
  }
}

TEST_F(HostileCalls, a_window_is_no_larger_than_what_is_counted) {
  const auto pooled = [&](const std::string& window) {
    return code(
        "input %x \"s\" : float32[17, 5, 70]\n%r = aten::max_pool1d(self=%x, kernel_size=[" +
        window + "], dilation=[17], ceil_mode=true)\noutput %r");
  };
  EXPECT_EQ(pooled("3"), ErrorCode::kOk) << error;
  EXPECT_EQ(pooled("9223372036854775806"), ErrorCode::kInvalidArgument);
}

TEST_F(HostileCalls, indices_are_read_where_they_lie) {
  const auto pooled = [&](const std::string& strides) {
    return code(
        "input %g \"g\" : float32[4, 3, 2, 4, 17]\n"
        "input %i \"i\" : int64[4, 3, 2, 4, 17] strides " +
        strides +
        "\n%r = aten::adaptive_max_pool3d_backward(grad_output=%g, self=%g, indices=%i)\n"
        "output %r");
  };
  EXPECT_EQ(pooled("[408, 136, 68, 17, 1]"), ErrorCode::kOk) << error;
  EXPECT_EQ(pooled("[408, 136, 68, 17, 0]"), ErrorCode::kInvalidArgument);
}

TEST_F(HostileCalls, weights_are_normalised_where_they_lie) {
  const auto norm = [&](const std::string& v, const std::string& g) {
    return code("input %v \"v\" : float32[8] strides " + v +
                "\ninput %g \"g\" : float32[8] strides " + g +
                "\n%r, %n = aten::_weight_norm_interface(v=%v, g=%g)\noutput %r, %n");
  };
  EXPECT_EQ(norm("[1]", "[1]"), ErrorCode::kOk) << error;
  EXPECT_EQ(norm("[0]", "[1]"), ErrorCode::kInvalidArgument);
  EXPECT_EQ(norm("[1]", "[0]"), ErrorCode::kInvalidArgument);
}

TEST_F(HostileCalls, a_reflection_is_shorter_than_the_input) {
  const auto back = [&](int64_t rows) {
    return code("input %g \"g\" : float64[1, " + std::to_string(rows + 2) +
                ", 7]\ninput %x \"x\" : float64[1, " + std::to_string(rows) +
                ", 7]\n%r = aten::reflection_pad2d_backward(grad_output=%g, self=%x, "
                "padding=[0, 0, 2, 0])\noutput %r");
  };
  EXPECT_EQ(back(3), ErrorCode::kOk) << error;
  EXPECT_EQ(back(1), ErrorCode::kInvalidArgument);
}

TEST_F(HostileCalls, a_gradient_is_of_a_sample_that_there_is) {
  const auto back = [&](const std::string& padding, double grid) {
    return code(
        "input %d \"d\" : float32[2, 3, 6, 7]\ninput %x \"x\" : float32[2, 3, 4, 5]\n"
        "input %g \"g\" : float32[2, 6, 7, 2]\n"
        "%r, %s = aten::grid_sampler_2d_backward(grad_output=%d, input=%x, grid=%g, "
        "interpolation_mode=0, padding_mode=" +
            padding + ", align_corners=false, output_mask=[true, true])\noutput %r, %s",
        grid);
  };
  EXPECT_EQ(back("0", NAN), ErrorCode::kOk) << error;
  EXPECT_EQ(back("1", 1e30), ErrorCode::kOk) << error;
  EXPECT_EQ(back("1", NAN), ErrorCode::kInvalidArgument);
  EXPECT_EQ(back("2", INFINITY), ErrorCode::kInvalidArgument);
}

TEST_F(HostileCalls, a_gradient_has_the_sizes_of_its_result) {
  const auto gelu = [&](const std::string& sizes) {
    return code("input %g \"g\" : float32" + sizes +
                "\ninput %x \"x\" : float32[6, 6]\n"
                "%r = aten::gelu_backward(grad_output=%g, self=%x)\noutput %r");
  };
  EXPECT_EQ(gelu("[6, 6] strides [0, 0]"), ErrorCode::kOk) << error;
  EXPECT_EQ(gelu("[6] strides [0]"), ErrorCode::kInvalidArgument);
}

TEST_F(HostileCalls, a_group_norm_reads_weights_where_they_lie) {
  const auto norm = [&](const std::string& strides) {
    return code("input %x \"x\" : float32[2, 4, 3]\ninput %w \"w\" : float32[4] strides " +
                strides +
                "\n%r, %s, %t = aten::native_group_norm(input=%x, weight=%w, bias=%w, N=2, C=4, "
                "HxW=3, group=2, eps=1.0)\noutput %r, %s, %t");
  };
  EXPECT_EQ(norm("[1]"), ErrorCode::kOk) << error;
  EXPECT_EQ(norm("[0]"), ErrorCode::kInvalidArgument);
}

TEST_F(HostileCalls, a_group_norm_is_of_the_sizes_that_are_said) {
  const auto norm = [&](const std::string& said) {
    return code(
        "input %x \"x\" : float32[2, 4, 3]\ninput %w \"w\" : float32[4]\n"
        "%r, %s, %t = aten::native_group_norm(input=%x, weight=%w, bias=%w, " +
        said + ", eps=1.0)\noutput %r, %s, %t");
  };
  EXPECT_EQ(norm("N=2, C=4, HxW=3, group=2"), ErrorCode::kOk) << error;
  EXPECT_EQ(norm("N=2, C=4, HxW=2305843009213693955, group=2"), ErrorCode::kInvalidArgument);
  EXPECT_EQ(norm("N=4, C=2, HxW=3, group=2"), ErrorCode::kInvalidArgument);
  EXPECT_EQ(norm("N=2, C=4, HxW=3, group=3"), ErrorCode::kInvalidArgument);
}

TEST_F(HostileCalls, a_layer_norm_is_changed_back_row_by_row) {
  const auto back = [&](const std::string& gradient, const std::string& mean) {
    return code("input %g \"g\" : float32[60, 8] strides " + gradient +
                "\ninput %x \"x\" : float32[60, 8]\ninput %w \"w\" : float32[8]\n"
                "input %m \"m\" : float32[60, 1] strides " +
                mean +
                "\n%r, %s, %t = aten::native_layer_norm_backward(grad_out=%g, input=%x, "
                "normalized_shape=[8], mean=%m, rstd=%m, weight=%w, bias=%w, "
                "output_mask=[true, true, true])\noutput %r, %s, %t");
  };
  EXPECT_EQ(back("[8, 1]", "[1, 1]"), ErrorCode::kOk) << error;
  EXPECT_EQ(back("[0, 0]", "[1, 1]"), ErrorCode::kOk) << error;
  EXPECT_EQ(back("[8, 1]", "[0, 0]"), ErrorCode::kInvalidArgument);
}

TEST_F(HostileCalls, a_weight_norm_is_changed_back_where_it_lies) {
  const auto back = [&](const std::string& gradient, const std::string& norms) {
    return code("input %g \"g\" : float32[8, 3] strides " + gradient +
                "\ninput %v \"v\" : float32[8, 3]\ninput %n \"n\" : float32[8, 1] strides " +
                norms +
                "\n%r, %s = aten::_weight_norm_interface_backward(grad_w=%g, saved_v=%v, "
                "saved_g=%n, saved_norms=%n, dim=0)\noutput %r, %s");
  };
  EXPECT_EQ(back("[3, 1]", "[1, 1]"), ErrorCode::kOk) << error;
  EXPECT_EQ(back("[0, 0]", "[1, 1]"), ErrorCode::kInvalidArgument);
  EXPECT_EQ(back("[3, 1]", "[0, 0]"), ErrorCode::kInvalidArgument);
}

TEST_F(HostileCalls, attention_is_changed_back_from_rows_that_there_are) {
  const auto back = [&](const std::string& out, const std::string& sums) {
    return code(
        "input %q \"q\" : float32[2, 3, 5, 4]\ninput %o \"o\" : float32[2, 3, 5, 4] strides " +
        out + "\ninput %l \"l\" : float32" + sums +
        "\n%r, %s, %t = aten::_scaled_dot_product_flash_attention_for_cpu_backward("
        "grad_out=%q, query=%q, key=%q, value=%q, out=%o, logsumexp=%l, dropout_p=0.0, "
        "is_causal=false)\noutput %r, %s, %t");
  };
  EXPECT_EQ(back("[60, 4, 12, 1]", "[2, 3, 5] strides [15, 1, 3]"), ErrorCode::kOk) << error;
  EXPECT_EQ(back("[60, 20, 4, 1]", "[1, 1, 30]"), ErrorCode::kInvalidArgument);
  EXPECT_EQ(back("[0, 0, 0, 0]", "[2, 3, 5]"), ErrorCode::kInvalidArgument);
}

TEST_F(HostileCalls, columns_are_those_of_windows_that_can_be_counted) {
  const auto image = [&](const std::string& padding) {
    return code(
        "input %x \"x\" : float32[3, 12, 9]\n%r = aten::col2im(self=%x, output_size=[4, 4], "
        "kernel_size=[2, 2], dilation=[1, 1], padding=[0, " +
        padding + "], stride=[1, 1])\noutput %r");
  };
  EXPECT_EQ(image("0"), ErrorCode::kOk) << error;
  EXPECT_EQ(image("4294967296"), ErrorCode::kInvalidArgument);
}

TEST_F(HostileCalls, a_loss_is_of_rows) {
  const auto loss = [&](const std::string& rows) {
    return code("input %x \"x\" : float32[" + rows + ", 3]\ninput %t \"t\" : int64[" + rows +
                "]\n%r = aten::multi_margin_loss(self=%x, target=%t)\noutput %r");
  };
  EXPECT_EQ(loss("2"), ErrorCode::kOk) << error;
  EXPECT_EQ(loss("0"), ErrorCode::kInvalidArgument);
}

TEST_F(HostileCalls, a_group_norm_is_changed_back_where_it_lies) {
  const auto back = [&](const std::string& gradient, const std::string& input) {
    return code("input %g \"g\" : float32[2, 4, 3] strides " + gradient +
                "\ninput %x \"x\" : float32[2, 4, 3] strides " + input +
                "\ninput %m \"m\" : float32[2, 2]\ninput %w \"w\" : float32[4]\n"
                "%r, %s, %t = aten::native_group_norm_backward(grad_out=%g, input=%x, mean=%m, "
                "rstd=%m, weight=%w, N=2, C=4, HxW=3, group=2, output_mask=[true, true, true])\n"
                "output %r, %s, %t");
  };
  EXPECT_EQ(back("[12, 3, 1]", "[12, 3, 1]"), ErrorCode::kOk) << error;
  EXPECT_EQ(back("[2, 2, 1]", "[12, 3, 1]"), ErrorCode::kInvalidArgument);
  EXPECT_EQ(back("[12, 3, 1]", "[12, 0, 1]"), ErrorCode::kInvalidArgument);
}

TEST_F(HostileCalls, a_batch_norm_is_changed_back_with_what_is_given_and_no_freed_copy) {
  const auto back = [&](const std::string& input, const std::string& weight,
                        const std::string& mean) {
    return code("input %x \"x\" : float32" + input + "\ninput %w \"w\" : float32[8] strides " +
                weight + "\ninput %m \"m\" : float32[8] strides " + mean +
                "\n%r, %s, %t = aten::native_batch_norm_backward(grad_out=%x, input=%x, weight=%w, "
                "running_mean=none, running_var=none, save_mean=%m, save_invstd=%m, train=true, "
                "eps=1e-05, output_mask=[true, true, true])\noutput %r, %s, %t");
  };
  for (const char* channels_last : {"[4, 8]", "[4, 8, 3, 3] strides [72, 1, 24, 8]"}) {
    EXPECT_EQ(back(channels_last, "[1]", "[1]"), ErrorCode::kOk) << error;
    EXPECT_EQ(back(channels_last, "[2]", "[1]"), ErrorCode::kInvalidArgument) << channels_last;
    EXPECT_EQ(back(channels_last, "[1]", "[0]"), ErrorCode::kInvalidArgument) << channels_last;
  }
  EXPECT_EQ(back("[4, 8, 3, 3]", "[2]", "[0]"), ErrorCode::kOk) << error;
}

TEST_F(HostileCalls, weights_of_attention_have_the_type_of_its_input) {
  const auto attention = [&](const std::string& bias) {
    return code(
        "input %q \"q\" : float32[2, 3, 8]\ninput %w \"w\" : float32[24, 8]\ninput %b \"b\" : " +
        bias +
        "[24]\ninput %p \"p\" : float32[8, 8]\ninput %c \"c\" : float32[8]\n"
        "%r, %s = aten::_native_multi_head_attention(query=%q, key=%q, value=%q, "
        "embed_dim=8, num_head=2, qkv_weight=%w, qkv_bias=%b, proj_weight=%p, "
        "proj_bias=%c)\noutput %r, %s");
  };
  EXPECT_EQ(attention("float32"), ErrorCode::kOk) << error;
  EXPECT_EQ(attention("uint16"), ErrorCode::kInvalidArgument);
}

TEST_F(HostileCalls, attention_reads_rows_that_there_are) {
  const auto flash = [&](const std::string& query) {
    return code("input %q \"q\" : float32" + query +
                "\ninput %k \"k\" : float32[3, 4, 5, 2]\n"
                "%r, %l = aten::_scaled_dot_product_flash_attention_for_cpu(query=%q, key=%k, "
                "value=%k)\noutput %r, %l");
  };
  EXPECT_EQ(flash("[3, 4, 1, 2]"), ErrorCode::kOk) << error;
  EXPECT_EQ(flash("[3, 4, 1, 2] strides [1, 3, 12, 12]"), ErrorCode::kInvalidArgument);
  EXPECT_EQ(flash("[3, 4, 0, 2]"), ErrorCode::kInvalidArgument);
  const auto shared = [&](const std::string& heads) {
    const std::string sizes = "[2, " + heads + ", 5, 4]\n";
    return code("input %q \"q\" : float32[2, 4, 5, 4]\ninput %k \"k\" : float32" + sizes +
                "%r = aten::scaled_dot_product_attention(query=%q, key=%k, value=%k, "
                "enable_gqa=true)\noutput %r");
  };
  EXPECT_EQ(shared("2"), ErrorCode::kOk) << error;
  EXPECT_EQ(shared("0"), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace djinn::exec
