# A history of 25 commits and a merge is made, packed, checked, read and cloned. Dates are fixed, so hashes are too.
set -e
export GIT_AUTHOR_DATE="1700000000 +0000" GIT_COMMITTER_DATE="1700000000 +0000" HOME="$PWD"
git init -q -b main repository && cd repository
git config user.name tester && git config user.email tester@example.org && git config gc.auto 0
for i in $(seq 25); do
    seq $i $((i * 400)) > file$((i % 7))
    git add . && git commit -q -m "commit $i"
done
git checkout -q -b side HEAD~5
echo side > side
git add side && git commit -q -m side && git merge -q -m merge main
git repack -q -a -d --threads=2
git gc -q --prune=now
git fsck --full --strict
git log --stat --format=%H
git blame file3 | sha256sum
git diff HEAD~9 | sha256sum
git clone -q . ../clone
git -C ../clone rev-parse HEAD
