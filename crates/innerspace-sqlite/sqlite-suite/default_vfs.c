/*
** Makes the VFS of the extension the default one, in a program that has SQLite in it. SQLite is
** compiled with -DSQLITE_EXTRA_INIT=innerspace_default, so this runs at the end of its
** initialisation. With INNERSPACE_VFS=unix in the environment nothing is changed.
*/
#include <stdlib.h>
#include <string.h>
#include "sqlite3.h"

extern int sqlite3_innerspacesqlite_init(sqlite3*, char**, const void*);


int innerspace_default(const char *nothing){
  sqlite3 *connection = 0;
  const char *wanted = getenv("INNERSPACE_VFS");
  sqlite3_vfs *vfs;
  int rc;
  (void)nothing;
  if( wanted!=0 && strcmp(wanted, "unix")==0 ) return SQLITE_OK;
  /* After a shutdown the VFS is still there, and no longer the default. */
  vfs = sqlite3_vfs_find("innerspace");
  if( vfs!=0 ) return sqlite3_vfs_register(vfs, 1);
  /* An extension gets its table of functions when a connection is opened. */
  rc = sqlite3_auto_extension((void(*)(void))sqlite3_innerspacesqlite_init);
  if( rc==SQLITE_OK ) rc = sqlite3_open(":memory:", &connection);
  sqlite3_close(connection);
  sqlite3_cancel_auto_extension((void(*)(void))sqlite3_innerspacesqlite_init);
  if( rc==SQLITE_OK ){
    vfs = sqlite3_vfs_find("innerspace");
    rc = vfs==0 ? SQLITE_ERROR : sqlite3_vfs_register(vfs, 1);
  }
  return rc;
}
