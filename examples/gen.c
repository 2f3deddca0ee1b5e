/* SPDX-License-Identifier: Apache-2.0 */

/* Goes on from a prompt with a model that lives in djinnd, and prints each token as it is made.
 *
 *   gen MODEL_DIRECTORY NEW_TOKENS TOKEN_ID...
 *
 * MODEL_DIRECTORY is an exported model or a Hugging Face llama model; the ids are what its
 * tokenizer made of the prompt. Ctrl-C ends the generation after the token that is under way. The
 * only library that this needs: cc gen.c -ldjinn-client
 */
#include <djinn.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

enum { kPromptMax = 4096 };

static volatile sig_atomic_t interrupted = 0;

static void interrupt(int signal) {
  (void)signal;
  interrupted = 1;
}

static int fail(const djinn_error* error) {
  fprintf(stderr, "gen: %s (%s)\n", error->message, djinn_code_name(error->code));
  return EXIT_FAILURE;
}

static int read_number(const char* word, intmax_t least, intmax_t most, intmax_t* out) {
  char* end = NULL;
  *out = strtoimax(word, &end, 10);
  return end != word && *end == '\0' && *out >= least && *out <= most;
}

/* Not 0 gives up the rest. */
static int show(void* context, uint32_t row, uint32_t index, int32_t token) {
  (void)context, (void)row, (void)index;
  printf("%" PRId32 "\n", token);
  fflush(stdout);
  return interrupted;
}

static int generate(djinn_generator* generator, const djinn_prompt* prompt, uint32_t new_tokens) {
  djinn_generate_options options;
  djinn_generate_options_init(&options);
  options.max_new_tokens = new_tokens;
  djinn_error error;
  const djinn_code code =
      djinn_generator_generate(generator, prompt, 1, &options, show, NULL, NULL, &error);
  return code == DJINN_OK ? EXIT_SUCCESS : fail(&error);
}

int main(int argc, char** argv) {
  int32_t ids[kPromptMax];
  intmax_t number = 0, new_tokens = 0;
  int right = argc >= 4 && argc - 3 <= kPromptMax;
  right = right && read_number(argv[2], 1, UINT32_MAX, &new_tokens);
  for (int i = 3; right && i < argc; ++i) {
    right = read_number(argv[i], INT32_MIN, INT32_MAX, &number);
    ids[i - 3] = (int32_t)number;
  }
  if (!right) {
    fprintf(stderr, "usage: gen MODEL_DIRECTORY NEW_TOKENS TOKEN_ID...\n");
    return 2;
  }
  signal(SIGINT, interrupt);
  djinn_error error;
  djinn_client* client = NULL;
  if (djinn_connect(NULL, &client, &error) != DJINN_OK) return fail(&error);
  djinn_generator* generator = NULL;
  int result = EXIT_FAILURE;
  if (djinn_generator_open(client, argv[1], &generator, &error) == DJINN_OK) {
    const djinn_prompt prompt = {ids, (size_t)(argc - 3)};
    result = generate(generator, &prompt, (uint32_t)new_tokens);
  } else {
    result = fail(&error);
  }
  djinn_generator_close(generator);
  djinn_close(client);
  return result;
}
