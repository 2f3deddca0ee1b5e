/* SPDX-License-Identifier: Apache-2.0 */

/* djinn.h: models that live in djinnd, for programs in C and for every language that can call C.
 *
 *   djinn_client     a session with djinnd. Closing it gives back everything that it held
 *   djinn_encoder    a bert model and its programs: token ids in, sentence embeddings out
 *   djinn_generator  a llama model: prompts in, tokens out as they are made
 *   djinn_tokenizer  text to token ids and back, by a model's tokenizer.json; needs no session
 *   djinn_text       the text of tokens that come one by one, by a djinn_tokenizer
 *   djinn_program    a graph of your own (SRG text) that runs on buffers
 *   djinn_ref        bytes that stay in djinnd between runs
 *
 * Ownership. What a function gives through its `out` parameter is the caller's, who ends it with
 * the matching _close. What was opened on a client is DJINN_DISCONNECTED once that is closed, and
 * is closed all the same. Strings and buffers that are passed in stay the caller's and are not
 * kept. All _close functions take NULL.
 *
 * Errors. Functions that can fail return a djinn_code, DJINN_OK for success, and fill in *error
 * unless it is NULL. On failure nothing is written to other out parameters.
 *
 * When djinnd goes. djinnd was restarted, say: calls that are under way fail within a second with
 * DJINN_DISCONNECTED; nothing is repeated behind the caller's back. The client stays: its next call
 * that opens something (or asks for the status, or puts a ref) makes it a new session first, and
 * waits for djinnd if it must (reconnect_wait_ms). What was opened before belongs to the session
 * that is gone: using it is DJINN_DISCONNECTED, whatever the client has by now; close it and open
 * it anew. The same holds in the child of a fork, which gets a session of its own.
 *
 * Threads. A client and all that was opened on it belong to one thread at a time. Clients are
 * independent of each other. djinn_cancel() alone may be called by any thread, and by signal
 * handlers.
 *
 * Units. Sizes in bytes where the name ends in _bytes, in elements else; moments in nanoseconds
 * since 1970, how long something takes in milliseconds. Tensors are contiguous, the last dimension
 * runs fastest.
 *
 * Structs that are passed in: begin from zero or from their _init function, for fields may be added
 * where `reserved` is now; there anything but zero is DJINN_INVALID_ARGUMENT.
 *
 * NULL. A pointer that is NULL and must not be is DJINN_INVALID_ARGUMENT; one to no elements may
 * be. Functions that return no code do nothing then, or return zeros.
 */
#ifndef DJINN_H
#define DJINN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define DJINN_API __attribute__((visibility("default")))
#else
#define DJINN_API
#endif

/* ---------------------------------------------------------------- errors */

/* In groups of a hundred; numbers are never reused, only added. */
typedef enum djinn_code {
  DJINN_OK = 0,
  DJINN_INVALID_ARGUMENT = 100,
  DJINN_MALFORMED = 101,
  DJINN_UNSUPPORTED = 102,
  DJINN_SHAPE_MISMATCH = 103,
  DJINN_OUT_OF_RANGE = 104,
  DJINN_PROTOCOL_VIOLATION = 105,
  DJINN_NOT_FOUND = 200,
  DJINN_STALE_HANDLE = 201,
  DJINN_ALREADY_EXISTS = 202,
  DJINN_POISONED = 203, /* the run that would have made this ref failed */
  DJINN_PERMISSION_DENIED = 300,
  DJINN_QUOTA_EXCEEDED = 301,
  DJINN_LIMIT_EXCEEDED = 302,
  DJINN_QUEUE_FULL = 303, /* see djinn_set_begin_within(); nothing was done */
  DJINN_BUSY = 304,
  DJINN_NOT_CONFINED = 305,
  DJINN_OUT_OF_MEMORY = 400,
  DJINN_IO = 401,
  DJINN_SYSTEM = 402,
  DJINN_DISCONNECTED = 500, /* the session of this is over: open it anew, or reconnect */
  DJINN_WORKER_LOST = 501,
  DJINN_LOADER_LOST = 502,
  DJINN_DEVICE_LOST = 503,
  DJINN_CANCELLED = 504,
  DJINN_TIMEOUT = 505,
  DJINN_FILE_CHANGED = 600,
  DJINN_HASH_MISMATCH = 601,
  DJINN_INTERNAL = 900
} djinn_code;

/* Plain data. message: what, why and what next, UTF-8, cut to fit, always terminated. */
typedef struct djinn_error {
  djinn_code code;
  char message[508];
} djinn_error;

/* "not_found" for DJINN_NOT_FOUND; "unknown" for a number that this library does not know. */
DJINN_API const char* djinn_code_name(djinn_code code);
/* "0.1.0", of the library. */
DJINN_API const char* djinn_version(void);

/* ---------------------------------------------------------------- dtypes */

typedef enum djinn_dtype {
  DJINN_BOOL = 1,
  DJINN_UINT8 = 2,
  DJINN_INT8 = 3,
  DJINN_INT16 = 4,
  DJINN_INT32 = 5,
  DJINN_INT64 = 6,
  DJINN_FLOAT16 = 7,
  DJINN_BFLOAT16 = 8,
  DJINN_FLOAT32 = 9,
  DJINN_FLOAT64 = 10,
  DJINN_UINT16 = 11,
  DJINN_UINT32 = 12,
  DJINN_UINT64 = 13,
  DJINN_FLOAT8_E4M3 = 14,
  DJINN_FLOAT8_E5M2 = 15,
  DJINN_COMPLEX64 = 16,
  DJINN_COMPLEX128 = 17
} djinn_dtype;

/* ---------------------------------------------------------------- sessions */

typedef struct djinn_client djinn_client;

#define DJINN_FOREVER UINT64_MAX
#define DJINN_NEVER (UINT64_MAX - 1)

typedef struct djinn_connect_options {
  /* "unix:PATH", or on another machine "ssh://USER@HOST" or "djinn://NAME"; NULL: $DJINN_HOST,
     else the user's daemon or the system's */
  const char* host;
  const char* name;           /* for people, shown by `djinnctl sessions`; NULL: none */
  uint64_t staging_bytes;     /* memory that inputs and outputs pass through; 0: 8 MiB */
  uint64_t reconnect_wait_ms; /* how long calls wait for a djinnd that went, from when the first of
                               * them saw it; 0: ten seconds; DJINN_FOREVER: until it is there;
                               * DJINN_NEVER: they fail, and only djinn_reconnect() makes another
                               * session */
  const char* device; /* "cpu:0", where models and programs are to be; NULL: djinnd's first */
  const char* service_class; /* "interactive", "normal", "batch" or "idle": its share of a busy lane
                              * beside the user's other sessions; NULL: "normal" */
  uint64_t reserved[1];
} djinn_connect_options;

/* options: NULL for the defaults. DJINN_NOT_FOUND when no daemon listens there; DJINN_TIMEOUT when
 * it takes the connection and has not answered after 65 seconds. */
DJINN_API djinn_code djinn_connect(const djinn_connect_options* options, djinn_client** out,
                                   djinn_error* error);
DJINN_API void djinn_close(djinn_client* client);
/* Ends the call that another thread, or the one whose signal handler this is, is in, whatever it
 * waits for: it returns DJINN_CANCELLED, and the client goes on. A run's call returns when the
 * operator that runs has ended, or after two seconds. What was asked of djinnd may be done all the
 * same; what comes of it is given back with a later call, but for pins. A call that was about to
 * end may succeed all the same; where there is no call, nothing happens, to later ones neither. Any
 * thread, and safe in signal handlers, as long as nobody closes the client meanwhile. NULL:
 * nothing. */
DJINN_API void djinn_cancel(djinn_client* client);
/* Makes a new session in place of one that is over; does nothing while it lives. Tries for so long,
 * once at least; DJINN_FOREVER: until djinnd is there. Errors as of djinn_connect(), of the last
 * try; DJINN_TIMEOUT when djinnd takes the connection and does not answer. */
DJINN_API djinn_code djinn_reconnect(djinn_client* client, uint64_t wait_ms, djinn_error* error);

/* From now on runs of the client (of encoders, generators and programs) may wait for so long for
 * their turn. One that djinnd expects to wait longer is DJINN_QUEUE_FULL at once, and one whose
 * turn comes later, then: nothing of it was done. Of the rows of an exported model, which are
 * generated each by itself, the first alone is judged: then the call has begun, and the others
 * wait. 0, DJINN_FOREVER: they wait, as they do at first. */
DJINN_API djinn_code djinn_set_begin_within(djinn_client* client, uint64_t within_ms,
                                            djinn_error* error);

typedef struct djinn_status {
  char version[32]; /* of the daemon */
  uint64_t started_ns;
  uint64_t memory_total_bytes; /* what the daemon may grant, and has granted */
  uint64_t memory_granted_bytes;
  uint64_t memory_models_bytes;
  uint64_t memory_sessions_bytes;
  uint32_t models;
  uint32_t sessions;
  uint32_t programs;
  uint32_t workers;
  uint64_t reserved[8];
} djinn_status;

DJINN_API djinn_code djinn_get_status(djinn_client* client, djinn_status* out, djinn_error* error);

/* ---------------------------------------------------------------- models */

/* Opens the model in a Hugging Face directory (config.json and safetensors), or the weights of an
 * exported one (djinn.json). Sessions that open the
 * same files share one copy. The id is good until the session closes it. */
DJINN_API djinn_code djinn_model_load(djinn_client* client, const char* directory, uint64_t* out,
                                      djinn_error* error);
/* As djinn_model_load(), and the model stays in memory until djinn_model_unload(). */
DJINN_API djinn_code djinn_model_load_pinned(djinn_client* client, const char* directory,
                                             uint64_t* out, djinn_error* error);
/* As djinn_model_load(), and when the last session has given its hold back, the model stays for so
 * long, whatever djinnd is configured to; 0: it goes at once; DJINN_FOREVER: until the memory is
 * wanted. Of one user's calls the last decides, of several users the longest time. */
DJINN_API djinn_code djinn_model_load_keep_alive(djinn_client* client, const char* directory,
                                                 uint64_t keep_alive_ms, uint64_t* out,
                                                 djinn_error* error);
/* Gives the session's hold on the model back. */
DJINN_API djinn_code djinn_model_close(djinn_client* client, uint64_t model, djinn_error* error);
/* Drops the model from memory. DJINN_BUSY while any session holds it. */
DJINN_API djinn_code djinn_model_unload(djinn_client* client, uint64_t model, djinn_error* error);

/* How a model is loaded and computed. All zeros, or NULL for it, are what djinn_encoder_open()
 * and djinn_generator_open() do. */
typedef struct djinn_model_options {
  const char* numerics; /* "exact": PyTorch's bits; "fast": djinn's own kernels where they fit;
                         * "fast-only": refused where they do not; NULL: what djinnctl load
                         * --numerics has said of the model, or else djinnd's lane.numerics, or
                         * "fast" where weights need it */
  const char* weights;  /* "int8": matrices are 32 values of a row and a scale, which "exact" does
                         * not compute with, and a model of their own; NULL: as the files are */
  uint64_t reserved[6];
} djinn_model_options;

/* ---------------------------------------------------------------- encoder */

typedef struct djinn_encoder djinn_encoder;

typedef struct djinn_encoder_info {
  uint32_t hidden;     /* elements of an embedding */
  uint32_t tokens_max; /* of a row */
  uint32_t rows_max;   /* of a batch */
  uint32_t vocabulary; /* ids are below it */
  djinn_dtype dtype;   /* what the model computes in; results are given as float all the same */
  uint32_t reserved[3];
} djinn_encoder_info;

/* Rows padded on the right to one length. */
typedef struct djinn_batch {
  uint32_t rows;
  uint32_t tokens;      /* a row, padding included */
  const int64_t* ids;   /* [rows, tokens] */
  const int64_t* mask;  /* [rows, tokens]: 1 for a token, 0 for padding; NULL: no padding */
  const int64_t* types; /* [rows, tokens]: token types; NULL: all 0 */
  uint64_t reserved[2];
} djinn_batch;

DJINN_API djinn_code djinn_encoder_open(djinn_client* client, const char* directory,
                                        djinn_encoder** out, djinn_error* error);
/* Errors: as djinn_generator_open_with(). */
DJINN_API djinn_code djinn_encoder_open_with(djinn_client* client, const char* directory,
                                             const djinn_model_options* options,
                                             djinn_encoder** out, djinn_error* error);
DJINN_API void djinn_encoder_close(djinn_encoder* encoder);
DJINN_API djinn_encoder_info djinn_encoder_get_info(const djinn_encoder* encoder);
/* embeddings: room for [rows, hidden]; each row the mean over its tokens, of length 1.
 * hidden: room for [rows, tokens, hidden], the last layer's output; NULL: not wanted.
 * DJINN_OUT_OF_RANGE for an id, of padding too, that is not in the vocabulary. */
DJINN_API djinn_code djinn_encoder_encode(djinn_encoder* encoder, const djinn_batch* batch,
                                          float* embeddings, float* hidden, djinn_error* error);

/* ---------------------------------------------------------------- generator */

typedef struct djinn_generator djinn_generator;

typedef struct djinn_generator_info {
  uint32_t vocabulary;
  uint32_t tokens_max; /* prompt and new tokens of a row */
  int32_t begin_token; /* what prompts begin with; -1: nothing */
  uint32_t reserved[5];
} djinn_generator_info;

typedef struct djinn_prompt {
  const int32_t* tokens;
  size_t count; /* at least 1 */
} djinn_prompt;

typedef struct djinn_generate_options {
  uint32_t max_new_tokens;    /* 0: 64 */
  uint32_t min_new_tokens;    /* no stop token before */
  const int32_t* stop_tokens; /* NULL: the model's own */
  size_t stop_token_count;
  int32_t pad_token;        /* fills prompts of unequal length; of an exported model: none */
  int32_t greedy;           /* not 0: the likeliest token, and the next four fields do not matter */
  float temperature;        /* 0: as greedy */
  uint32_t top_k;           /* 0: all */
  float top_p;              /* 1, or 0: all */
  float min_p;              /* 0: all */
  float repetition_penalty; /* 1, or 0: none */
  uint64_t seed;
  uint64_t random_offset;  /* of the first draw; what a generation gave for the next one goes on.
                            * Draws for several rows alternate: one for each row's first token, then
                            * one for each row's second; of an exported model all of a row come
                            * before those of the next */
  djinn_error* row_errors; /* NULL, or room for one for each prompt: how each row ended, unless the
                            * call failed as a whole */
  uint64_t reserved[3];
} djinn_generate_options;

/* 64 tokens, greedy, no penalty, the model's own stop tokens; all zeros mean the same. NULL:
 * nothing. */
DJINN_API void djinn_generate_options_init(djinn_generate_options* options);

/* A token of a row; index counts the row's new tokens from 0. Stop tokens are told, too. Not 0 from
 * it gives up the rest, which is no error. Runs inside djinn_generator_generate(), on its thread;
 * must not use the client (DJINN_BUSY) nor close anything of it, and must return (no longjmp, no
 * exception). */
typedef int (*djinn_on_token)(void* context, uint32_t row, uint32_t index, int32_t token);

/* directory: with the djinn.json of an exported model (python3 -m djinn export), of which a call
 * generates each row by itself: in "fast" numerics, where no token is drawn, at the same time, and
 * else one after the other; else a Hugging Face directory of a llama model.
 * DJINN_FILE_CHANGED when the weights' tensors are others than those that were exported. */
DJINN_API djinn_code djinn_generator_open(djinn_client* client, const char* directory,
                                          djinn_generator** out, djinn_error* error);

/* DJINN_INVALID_ARGUMENT for a word that names none; DJINN_UNSUPPORTED for "int8" and "exact". A
 * program that reads such a weight otherwise than as a matrix is DJINN_UNSUPPORTED when it is first
 * needed, and the error names both. */
DJINN_API djinn_code djinn_generator_open_with(djinn_client* client, const char* directory,
                                               const djinn_model_options* options,
                                               djinn_generator** out, djinn_error* error);
DJINN_API void djinn_generator_close(djinn_generator* generator);
DJINN_API djinn_generator_info djinn_generator_get_info(const djinn_generator* generator);
/* options: NULL for the defaults. next_random_offset: NULL if not wanted. DJINN_QUEUE_FULL comes
 * before any token. Of several rows of an exported model some may fail when others have said
 * something (memory is short, the worker is lost): the call's error is the first such row's, and
 * names it; options->row_errors says of each row how it ended, DJINN_OK of those whose tokens, as
 * on_token was told them, are all. *next_random_offset is not written then. Rows that are generated
 * at the same time have sessions of their own until the call ends; of these, too, on_token is told
 * one token at a time, each row's in order. */
DJINN_API djinn_code djinn_generator_generate(djinn_generator* generator,
                                              const djinn_prompt* prompts, size_t prompt_count,
                                              const djinn_generate_options* options,
                                              djinn_on_token on_token, void* context,
                                              uint64_t* next_random_offset, djinn_error* error);

/* ---------------------------------------------------------------- text */

typedef struct djinn_tokenizer djinn_tokenizer;
typedef struct djinn_text djinn_text;

/* Text to token ids and back, as Hugging Face's tokenizers do it by the directory's tokenizer.json.
 * Several threads may use one at a time. DJINN_UNSUPPORTED for what is not known of such files
 * here; the error names it. */
DJINN_API djinn_code djinn_tokenizer_open(const char* directory, djinn_tokenizer** out,
                                          djinn_error* error);
DJINN_API void djinn_tokenizer_close(djinn_tokenizer* tokenizer);
/* text: UTF-8, text_bytes of it. special: not 0: with the tokens that the file puts before and
 * behind a text. At most `room` ids are written to tokens; *count is how many there are. */
DJINN_API djinn_code djinn_tokenizer_encode(const djinn_tokenizer* tokenizer, const char* text,
                                            size_t text_bytes, int special, int32_t* tokens,
                                            size_t room, size_t* count, djinn_error* error);
/* special: not 0: special tokens are written, too. At most `room` bytes of UTF-8 are written to
 * text, with no 0 behind; *text_bytes is how many there are. Ids of no token are passed over. */
DJINN_API djinn_code djinn_tokenizer_decode(const djinn_tokenizer* tokenizer, const int32_t* tokens,
                                            size_t count, int special, char* text, size_t room,
                                            size_t* text_bytes, djinn_error* error);

/* The text of tokens that come one by one, of one row; without special tokens. May outlive the
 * tokenizer. One thread at a time. */
DJINN_API djinn_code djinn_text_open(const djinn_tokenizer* tokenizer, djinn_text** out,
                                     djinn_error* error);
DJINN_API void djinn_text_close(djinn_text* text);
/* What the token adds, as far as it is whole characters: *out_bytes of it, and a 0 behind, good
 * until the next call on text. out_bytes: NULL if not wanted. */
DJINN_API djinn_code djinn_text_next(djinn_text* text, int32_t token, const char** out,
                                     size_t* out_bytes, djinn_error* error);
/* What had to wait for a token that did not come. Tokens after that go on with the same text: what
 * is told of a text's first token does not hold for them. Another text is another djinn_text. */
DJINN_API djinn_code djinn_text_finish(djinn_text* text, const char** out, size_t* out_bytes,
                                       djinn_error* error);

/* ---------------------------------------------------------------- refs */

/* Bytes in djinnd, of one session. Plain data; {0, 0} is none. One of a session that is over is
 * never taken for one of the next. */
typedef struct djinn_ref {
  uint32_t index;
  uint32_t generation;
} djinn_ref;

DJINN_API djinn_code djinn_ref_put(djinn_client* client, const void* data, size_t data_bytes,
                                   djinn_ref* out, djinn_error* error);
/* Bytes [offset_bytes, offset_bytes + data_bytes) of the ref. */
DJINN_API djinn_code djinn_ref_read(djinn_client* client, djinn_ref ref, uint64_t offset_bytes,
                                    void* data, size_t data_bytes, djinn_error* error);
DJINN_API djinn_code djinn_ref_release(djinn_client* client, djinn_ref ref, djinn_error* error);

/* ---------------------------------------------------------------- programs */

typedef struct djinn_program djinn_program;

#define DJINN_RANK_MAX 8

typedef struct djinn_symbol {
  const char* name;
  int64_t value;
} djinn_symbol;

/* ref, where its generation is not 0; else data. */
typedef struct djinn_input {
  const char* name;
  const void* data;
  size_t data_bytes;
  djinn_ref ref;
} djinn_input;

/* Where an output goes: into data if that is not NULL, else into a new ref, which the run fills in
 * and the caller releases. What is a view of an input gets no ref of its own
 * (DJINN_INVALID_ARGUMENT): give it data, or clone it in the graph. */
typedef struct djinn_output {
  const char* name;
  void* data;
  size_t data_bytes; /* room in data */
  /* What the run fills in: */
  djinn_ref ref;
  djinn_dtype dtype;
  uint32_t rank;
  int64_t sizes[DJINN_RANK_MAX];
  int64_t strides[DJINN_RANK_MAX]; /* in elements; of the ref. data is contiguous */
  uint64_t offset;                 /* in elements; of the ref */
} djinn_output;

/* srg_text: a graph in SRG text (the page djinn-srg(7)). model: whose weights it names; 0: none. */
DJINN_API djinn_code djinn_program_define(djinn_client* client, const char* srg_text,
                                          uint64_t model, djinn_program** out, djinn_error* error);
DJINN_API void djinn_program_close(djinn_program* program);
/* Runs and waits. Every symbol and input of the graph must be given; outputs that are not named are
 * not kept. DJINN_NOT_FOUND for a name that the graph does not have. */
DJINN_API djinn_code djinn_program_run(djinn_program* program, const djinn_symbol* symbols,
                                       size_t symbol_count, const djinn_input* inputs,
                                       size_t input_count, djinn_output* outputs,
                                       size_t output_count, djinn_error* error);

#ifdef __cplusplus
}
#endif

#endif
