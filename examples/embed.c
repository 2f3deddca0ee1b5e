/* SPDX-License-Identifier: Apache-2.0 */

/* Embeds one sentence with a model that lives in djinnd.
 *
 *   embed MODEL_DIRECTORY TOKEN_ID...
 *
 * MODEL_DIRECTORY is a Hugging Face bert model; the ids are what its tokenizer made of the
 * sentence. The only library that this needs: cc embed.c -ldjinn-client
 */
#include <djinn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { kTokensMax = 512, kShown = 8 };

static int fail(const djinn_error* error) {
  fprintf(stderr, "embed: %s (%s)\n", error->message, djinn_code_name(error->code));
  return EXIT_FAILURE;
}

static int read_ids(int count, char** words, int64_t* ids) {
  for (int i = 0; i < count; ++i) {
    char* end = NULL;
    ids[i] = strtoimax(words[i], &end, 10);
    if (*end != '\0' || end == words[i]) return 0;
  }
  return 1;
}

static int embed(djinn_encoder* encoder, const int64_t* ids, uint32_t tokens) {
  const uint32_t hidden = djinn_encoder_get_info(encoder).hidden;
  const djinn_batch batch = {.rows = 1, .tokens = tokens, .ids = ids};
  float* const embedding = malloc(hidden * sizeof *embedding);
  if (embedding == NULL) return EXIT_FAILURE;
  djinn_error error;
  int result = EXIT_SUCCESS;
  if (djinn_encoder_encode(encoder, &batch, embedding, NULL, &error) != DJINN_OK) {
    result = fail(&error);
  } else {
    for (uint32_t i = 0; i < hidden && i < kShown; ++i) printf("%.9g\n", embedding[i]);
  }
  free(embedding);
  return result;
}

int main(int argc, char** argv) {
  int64_t ids[kTokensMax];
  if (argc < 3 || argc - 2 > kTokensMax || !read_ids(argc - 2, argv + 2, ids)) {
    fprintf(stderr, "usage: embed MODEL_DIRECTORY TOKEN_ID...\n");
    return 2;
  }
  djinn_error error;
  djinn_client* client = NULL;
  if (djinn_connect(NULL, &client, &error) != DJINN_OK) return fail(&error);
  djinn_encoder* encoder = NULL;
  int result = EXIT_FAILURE;
  if (djinn_encoder_open(client, argv[1], &encoder, &error) == DJINN_OK) {
    result = embed(encoder, ids, (uint32_t)(argc - 2));
  } else {
    result = fail(&error);
  }
  djinn_encoder_close(encoder);
  djinn_close(client);
  return result;
}
