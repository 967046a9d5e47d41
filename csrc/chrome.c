/* chrome.c - the words of the Chrome trace format. */
#include "chrome.h"

void
mp_chrome_begin(mp_chrome_t *chrome, char ph, const char *cat, int64_t pid,
                uint64_t tid, int64_t time_ns)
{
    mp_outfile_t *file = chrome->file;
    if (chrome->any || chrome->options->comma_before) {
        mp_outfile_text(file, ",\n");
    }
    chrome->any = true;
    mp_outfile_text(file, "{\"ph\":\"");
    mp_outfile_byte(file, ph);
    if (cat != NULL) {
        mp_outfile_text(file, "\",\"cat\":\"");
        mp_outfile_text(file, cat);
    }
    mp_outfile_text(file, "\",\"pid\":");
    mp_json_int(file, pid);
    mp_outfile_text(file, ",\"tid\":");
    mp_json_uint(file, tid);
    mp_outfile_text(file, ",\"ts\":");
    mp_json_micros(file, mp_export_wall(chrome->source, time_ns) -
                             chrome->options->base_ns);
}

void
mp_chrome_duration(mp_chrome_t *chrome, int64_t begin_ns, int64_t end_ns)
{
    int64_t base = chrome->options->base_ns;
    int64_t begin = mp_export_wall(chrome->source, begin_ns) - base;
    int64_t end = mp_export_wall(chrome->source, end_ns) - base;
    begin = begin < 0 ? 0 : begin; /* as it is written */
    mp_outfile_text(chrome->file, ",\"dur\":");
    mp_json_micros(chrome->file, end - begin);
}

void
mp_chrome_name(mp_chrome_t *chrome, const char *name)
{
    mp_outfile_text(chrome->file, ",\"name\":\"");
    mp_outfile_text(chrome->file, name);
    mp_outfile_byte(chrome->file, '"');
}

static void
write_interned(mp_chrome_t *chrome, uint32_t text)
{
    const char *characters;
    size_t length;
    if (text != MP_NO_INDEX &&
        mp_intern_text(chrome->source->intern, text, &characters, &length)) {
        mp_json_characters(chrome->file, characters, length);
    }
}

void
mp_chrome_interned_name(mp_chrome_t *chrome, const char *prefix, uint32_t text)
{
    mp_outfile_text(chrome->file, ",\"name\":\"");
    mp_outfile_text(chrome->file, prefix);
    write_interned(chrome, text);
    mp_outfile_byte(chrome->file, '"');
}

void
mp_chrome_args(mp_chrome_t *chrome)
{
    mp_outfile_text(chrome->file, ",\"args\":{");
}

static void
write_key(mp_chrome_t *chrome, bool first, const char *key)
{
    mp_outfile_text(chrome->file, first ? "\"" : ",\"");
    mp_outfile_text(chrome->file, key);
    mp_outfile_text(chrome->file, "\":");
}

void
mp_chrome_int(mp_chrome_t *chrome, bool first, const char *key, int64_t value)
{
    write_key(chrome, first, key);
    mp_json_int(chrome->file, value);
}

void
mp_chrome_uint(mp_chrome_t *chrome, bool first, const char *key,
               uint64_t value)
{
    write_key(chrome, first, key);
    mp_json_uint(chrome->file, value);
}

void
mp_chrome_text(mp_chrome_t *chrome, bool first, const char *key,
               const char *text, size_t length)
{
    write_key(chrome, first, key);
    mp_json_string(chrome->file, text, length);
}

void
mp_chrome_interned(mp_chrome_t *chrome, bool first, const char *key,
                   uint32_t text)
{
    write_key(chrome, first, key);
    mp_outfile_byte(chrome->file, '"');
    write_interned(chrome, text);
    mp_outfile_byte(chrome->file, '"');
}

void
mp_chrome_args_end(mp_chrome_t *chrome)
{
    mp_outfile_text(chrome->file, "}}");
}

void
mp_chrome_end(mp_chrome_t *chrome)
{
    mp_outfile_byte(chrome->file, '}');
}

void
mp_chrome_metadata_int(mp_chrome_t *chrome, int64_t pid, uint64_t tid,
                       const char *name, const char *key, int64_t value)
{
    mp_chrome_begin(chrome, 'M', NULL, pid, tid, mp_chrome_time(chrome, -1));
    mp_chrome_name(chrome, name);
    mp_chrome_args(chrome);
    mp_chrome_int(chrome, true, key, value);
    mp_chrome_args_end(chrome);
}

void
mp_chrome_metadata_text(mp_chrome_t *chrome, int64_t pid, uint64_t tid,
                        const char *name, const char *key, const char *value)
{
    mp_chrome_begin(chrome, 'M', NULL, pid, tid, mp_chrome_time(chrome, -1));
    mp_chrome_name(chrome, name);
    mp_chrome_args(chrome);
    mp_chrome_text(chrome, true, key, value, strlen(value));
    mp_chrome_args_end(chrome);
}

void
mp_chrome_counter(mp_chrome_t *chrome, int64_t pid, const char *name,
                  int64_t time_ns, int64_t bytes)
{
    mp_chrome_begin(chrome, 'C', NULL, pid, MP_CHROME_ROW_COUNTERS, time_ns);
    mp_chrome_name(chrome, name);
    mp_chrome_args(chrome);
    mp_chrome_int(chrome, true, "bytes", bytes);
    mp_chrome_args_end(chrome);
}

int64_t
mp_chrome_time(const mp_chrome_t *chrome, int64_t event)
{
    const mp_export_t *source = chrome->source;
    if (source->event_count == 0) {
        return source->start_ns;
    }
    if (event < 0) {
        return chrome->clock[0];
    }
    size_t last = source->event_count - 1;
    return chrome->clock[(size_t)event < last ? (size_t)event : last];
}

mp_status_t
mp_chrome_status(const mp_chrome_t *chrome)
{
    uint64_t most = chrome->options->max_bytes;
    if (most != 0 && mp_outfile_length(chrome->file) > most) {
        return MP_ERR_FULL;
    }
    return mp_outfile_status(chrome->file);
}
