import os
import sys
import traceback

from scaling.cli import main
from scaling.process import is_first_process

if is_first_process():
    sys.exit(main())
try:
    status = main()
except Exception:
    traceback.print_exc()
    status = 1
sys.stdout.flush()
sys.stderr.flush()
os._exit(
    status
)  # a process that shares a run keeps nothing, and torch's own end may abort while the others still go on
