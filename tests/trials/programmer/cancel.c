/* SPDX-License-Identifier: Apache-2.0 */

/* cancel MODEL: generates until Ctrl-C, and then a little more. From djinn_connect(3). */
#include <djinn.h>
#include <signal.h>
#include <stdio.h>

static djinn_client* client = NULL;

static void on_signal(int signal) {
  (void)signal;
  djinn_cancel(client);
}

static int count(void* context, uint32_t row, uint32_t index, int32_t token) {
  (void)row, (void)token;
  if (index == 0) {
    puts("it talks");
    fflush(stdout);
  }
  *(uint32_t*)context = index + 1;
  return 0;
}

int main(int argc, char** argv) {
  djinn_error error;
  djinn_generator* generator = NULL;
  if (argc != 2 || djinn_connect(NULL, &client, &error) != DJINN_OK ||
      djinn_generator_open(client, argv[1], &generator, &error) != DJINN_OK) {
    return 2;
  }
  signal(SIGINT, on_signal);
  const int32_t begin = djinn_generator_get_info(generator).begin_token, none = 0;
  const djinn_prompt prompt = {&begin, 1};
  djinn_generate_options options;
  djinn_generate_options_init(&options);
  options.stop_tokens = &none; /* a byte that no text has */
  options.stop_token_count = 1;
  for (options.max_new_tokens = 1000; options.max_new_tokens != 0;
       options.max_new_tokens = options.max_new_tokens == 1000 ? 3 : 0) {
    uint32_t tokens = 0;
    const djinn_code code =
        djinn_generator_generate(generator, &prompt, 1, &options, count, &tokens, NULL, &error);
    printf("%s after %s\n", djinn_code_name(code), tokens == 3 ? "3 tokens" : "some");
  }
  djinn_generator_close(generator);
  djinn_close(client);
  return 0;
}
