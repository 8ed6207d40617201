/* chat.h - a conversation, and the prompt that a folder's chat template makes of it. */
#ifndef TERN_CLI_GENERATE_CHAT_H
#define TERN_CLI_GENERATE_CHAT_H

#include "base/base.h"

#include <tern/tokenizer.h>

typedef struct tern__chat tern__chat;

/* Reads the template of a folder of Hugging Face: chat_template.jinja, or the chat_template of
 * tokenizer_config.json. NULL: E_IO, E_FORMAT, E_UNSUPPORTED: it has none. */
tern__chat *tern__chat_open(const char *folder, tern_error *err);
void tern__chat_free(tern__chat *chat);
/* Appends a message of "user" or "assistant". E_MEMORY. */
int tern__chat_add(tern__chat *chat, const char *role, const char *content, tern_error *err);
/* Takes the last message back. */
void tern__chat_drop(tern__chat *chat);
/* Writes the prompt after which the assistant's next message follows. transformers'
 * tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False). E_UNSUPPORTED: no
 * Python with Jinja2; E_FORMAT: what the template says against the conversation, or is wrong with it;
 * E_SYSTEM. */
int tern__chat_prompt(const tern__chat *chat, tern_text *prompt, tern_error *err);

#endif
