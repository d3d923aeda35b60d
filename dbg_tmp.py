import sys,logging,time,collections
logging.disable(logging.CRITICAL)
from tests.sim.scenarios import run
t=time.time(); copies=0; bad=0
for seed in range(int(sys.argv[1]),int(sys.argv[2])):
    try:
        r=run("retention",seed)
    except BaseException as e:
        bad+=1
        print(seed,"RAISED",type(e).__name__,str(e)[:300]); print("\n".join(n for n in getattr(e,'__notes__',[]) )[:1500])
        if bad>2: break
        continue
    copies+=r.copies
    if r.anomalies: print(seed,r.copies,r.anomalies[:3]); bad+=1
    if bad>3: break
print("copies",copies,"seconds",time.time()-t, "acked", r.acknowledged, "committed", r.committed)
