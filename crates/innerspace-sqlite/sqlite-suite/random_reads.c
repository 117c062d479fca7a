/*
** Reads rows of a database at random, a page each.
**
**   random_reads make FILE ROWS
**   random_reads read URI ROWS READS CACHE_PAGES MMAP_BYTES HOT
**
** HOT is in hundredths: so many reads are of the first fifth of the rows, the others of all. Prints
** the reads in a second of the second half; the first half fills the caches.
*/
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "sqlite3.h"

static sqlite3 *db;

static void check(int rc, const char *what){
  if( rc==SQLITE_OK || rc==SQLITE_ROW || rc==SQLITE_DONE ) return;
  fprintf(stderr, "%s: %s\n", what, sqlite3_errmsg(db));
  exit(1);
}

static void run(const char *sql){
  check(sqlite3_exec(db, sql, 0, 0, 0), sql);
}

static unsigned long long next(void){
  static unsigned long long x = 0x9e3779b97f4a7c15ULL;
  x ^= x>>12; x ^= x<<25; x ^= x>>27;
  return x * 0x2545f4914f6cdd1dULL;
}

static double now(void){
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec/1e9;
}

int main(int argc, char **argv){
  char sql[500];
  sqlite3_stmt *query;
  long rows, reads, hot, i;
  double start = 0;
  int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_URI;
  if( argc<4 ) return 2;
  rows = atol(argv[3]);
  check(sqlite3_open_v2(argv[2], &db, flags, 0), argv[2]);
  if( strcmp(argv[1], "make")==0 ){
    run("PRAGMA page_size=4096; PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;"
        "CREATE TABLE t(id INTEGER PRIMARY KEY, n INTEGER, filling BLOB)");
    snprintf(sql, sizeof(sql), "WITH RECURSIVE c(i) AS (VALUES(1) UNION ALL SELECT i+1 FROM c "
        "WHERE i<%ld) INSERT INTO t SELECT i, i*31, randomblob(3500) FROM c", rows);
    run(sql);
    run("PRAGMA journal_mode=DELETE");
    return sqlite3_close(db);
  }
  if( argc<8 ) return 2;
  reads = atol(argv[4]);
  hot = atol(argv[7]);
  snprintf(sql, sizeof(sql), "PRAGMA cache_size=%s; PRAGMA mmap_size=%s", argv[5], argv[6]);
  run(sql);
  check(sqlite3_prepare_v2(db, "SELECT n FROM t WHERE id=?", -1, &query, 0), "prepare");
  for(i=0; i<2*reads; i++){
    long among = (long)(next()%100)<hot ? rows/5 : rows;
    long id = 1 + (long)(next()%(unsigned long long)among);
    if( i==reads ) start = now();
    sqlite3_bind_int64(query, 1, id);
    check(sqlite3_step(query), "step");
    if( sqlite3_column_int64(query, 0)!=id*31 ){
      fprintf(stderr, "row %ld is wrong\n", id);
      return 1;
    }
    sqlite3_reset(query);
  }
  printf("%.0f\n", reads/(now() - start));
  sqlite3_finalize(query);
  return sqlite3_close(db);
}
