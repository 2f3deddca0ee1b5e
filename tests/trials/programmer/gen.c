/* SPDX-License-Identifier: Apache-2.0 */

/* gen MODEL: what a byte-level model makes of its standard input. From djinn_generator_open(3). */
#include <djinn.h>
#include <stdio.h>

static int show(void* context, uint32_t row, uint32_t index, int32_t token) {
  (void)context, (void)row, (void)index;
  if (token < 256) putchar(token);
  return 0;
}

static int complain(const djinn_error* error) {
  fprintf(stderr, "gen: %s: %s\n", djinn_code_name(error->code), error->message);
  return 1;
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  djinn_error error;
  djinn_client* client = NULL;
  if (djinn_connect(NULL, &client, &error) != DJINN_OK) return complain(&error);
  djinn_generator* generator = NULL;
  if (djinn_generator_open(client, argv[1], &generator, &error) != DJINN_OK) {
    djinn_close(client);
    return complain(&error);
  }
  int32_t text[512];
  size_t count = 0;
  text[count++] = djinn_generator_get_info(generator).begin_token;
  for (int one = getchar(); one != EOF && count < 512; one = getchar()) text[count++] = one;

  const djinn_prompt prompt = {text, count};
  const djinn_code code =
      djinn_generator_generate(generator, &prompt, 1, NULL, show, NULL, NULL, &error);
  djinn_generator_close(generator);
  djinn_close(client);
  return code == DJINN_OK ? 0 : complain(&error);
}
